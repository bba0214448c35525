"""Pages: HTML that shows results."""
