"""The live page: a prompt, edits, and their effect on maps, sinks and the next token."""
