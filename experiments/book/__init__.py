"""The book of experiments: its pages, RESULTS.md and the other texts whose numbers are cells of stored rows."""
