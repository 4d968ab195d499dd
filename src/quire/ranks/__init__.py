"""A model on several processes: what they send each other, how they are started, compared and watched. Without torch."""
