"""Between text and tokens: from questions to requests, from tokens to answers, and grammars."""
