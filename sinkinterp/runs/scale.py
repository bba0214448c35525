"""The scales at which experiments run."""

from enum import StrEnum


class Scale(StrEnum):
    """Which models an experiment runs on."""

    SMOKE = "smoke"  # what ships, or a few steps of training: seconds, no result
    DEMO = "demo"  # toys that train in seconds
    TEXT = "text"  # small models of text, 20 minutes each
    REAL = "real"  # pretrained models that `make models` downloads
    PAPER = "paper"  # the paper's models
