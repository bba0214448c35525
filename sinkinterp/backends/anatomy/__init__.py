"""The parts of a model of transformers: its modules, its maps to queries, keys and values, its attention."""
