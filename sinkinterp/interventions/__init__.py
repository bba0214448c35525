"""Edits: frozen values that say what changes; adapters say how."""
