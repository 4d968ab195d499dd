"""A model on several processes: what they exchange, how they are started, compared and watched. Without torch."""
