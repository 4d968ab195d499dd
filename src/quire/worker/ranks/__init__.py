"""One process of a group: its part of a model, how that is read and proved, what it asks of the others."""
