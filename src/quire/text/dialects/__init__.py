"""How families of models write tool calls and reasoning: one table, one reader, and grammars that enforce calls."""
