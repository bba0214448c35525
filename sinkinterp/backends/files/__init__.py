"""Models in files: those that have a name here, and how the weights of any are read."""
