"""OpenAI's Responses API, on the chat that the server has: bodies, translation, answers, a store of conversations."""
