"""The prefix cache: finds computed prefixes for later requests, and evicts those that are worth least."""
