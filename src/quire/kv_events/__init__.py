"""Which blocks are in the pool, as events that other projects' routers decode (docs/events.md)."""
