"""What was measured of a model: numbers, tables, figures. A report needs no model to be read, shown or saved."""

from ..lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__)
