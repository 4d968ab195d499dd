"""Which page holds what: a pool of sheets, tables of pages per request, and the books that prove it."""
