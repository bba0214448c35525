"""Token sources: a synthetic task, the embedded English text, and files."""
