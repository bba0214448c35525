"""Why heads look at the first token: the parts of their scores, who writes what they read, and what cuts remove."""
