"""The KV memory: a pool of sheets, tables of pages per request, compaction, and an audit of all counts."""
