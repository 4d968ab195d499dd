"""The same engine on virtual time: traces, cost models, reports."""
