"""Types that all packages share: units, dtypes, layer memories, requests, steps, events, errors. Imports no other."""
