"""Tokens in, report out: measuring, its sweeps, patches and comparisons."""
