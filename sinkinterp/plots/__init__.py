"""Figures from tables and arrays. A figure computes nothing and saves nothing; it names the columns that it reads."""
