"""Subjects: one protocol over the libraries that run models."""
