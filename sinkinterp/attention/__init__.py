"""One attention call: its scores, its pattern, and what can be known of the pattern without keeping it."""
