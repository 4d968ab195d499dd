"""The words everyone shares: units, dtypes, what a layer remembers, errors. Imports nothing else of Quire."""
