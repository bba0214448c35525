"""Runs: trained models, fine-tuned models, inputs and experiments."""
