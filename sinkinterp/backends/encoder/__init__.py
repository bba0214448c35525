"""Encoder-decoder models, and what their encoder is given."""
