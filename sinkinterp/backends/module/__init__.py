"""PyTorch modules of the user's own as subjects: found, read and edited by the operations that run."""
