"""Data: tokens to measure models on, texts to train them on, and a synthetic task."""
