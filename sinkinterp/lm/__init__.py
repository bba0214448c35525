"""The model family: a Hugging Face causal LM whose every part is a value."""
