"""From logits to tokens and log-probabilities."""
