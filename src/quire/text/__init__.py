"""Between text and tokens: tokenizers, chat templates, streams, stop strings, grammars."""
