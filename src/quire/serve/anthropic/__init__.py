"""Anthropic's Messages API: its bodies, how they become chats, and how answers and errors are written."""
