"""The live page: a prompt, edits, and what they change in maps, sinks and the next token."""
