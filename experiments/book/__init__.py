"""The book of all experiments: `python -m experiments.book FOLDER` judges and draws it again from its numbers."""
