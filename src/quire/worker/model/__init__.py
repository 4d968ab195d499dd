"""transformers' models on Quire's pages, and what is changed in them before they run."""
