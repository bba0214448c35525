"""Figures from tables and arrays. A view computes nothing and saves nothing."""
