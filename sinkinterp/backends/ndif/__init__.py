"""Models on an NDIF server."""
