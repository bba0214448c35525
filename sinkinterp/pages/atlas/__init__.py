"""The atlas: a page with the attention map of every head."""
