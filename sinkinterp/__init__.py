"""Mechanistic interpretability of attention sinks: read them, move them, train them away.

import sinkinterp as si

report = si.measure("gpt2", "Language models pour attention onto their first token.")
report.summary()
moved = si.measure("gpt2", text, edits=si.SwapPositions(0, 4))
"""

import ast
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .attributes import Package

if TYPE_CHECKING:
    from .applications.mend import mend as mend
    from .applications.outliers import mask as mask
    from .attention import sites as sites
    from .backends.load import load as load
    from .backends.mended import with_adapter as with_adapter, without_adapter as without_adapter
    from .backends.module.module_subject import AttentionOf as AttentionOf
    from .backends.patched import patched as patched
    from .interventions.attention_layers import PatchNormalization as PatchNormalization
    from .interventions.positions import SwapPositions as SwapPositions
    from .lm.variants import VARIANTS as VARIANTS
    from .measurement.activation_patching import activation_patching as activation_patching
    from .measurement.explaining import explain as explain
    from .measurement.maps import attention_map as attention_map, sinks as sinks
    from .measurement.measure import measure as measure
    from .measurement.sweep import sink_rate as sink_rate, sweep as sweep
    from .measurement.tabulate import compare as compare
    from .measurement.watching import SinkCallback as SinkCallback
    from .pages.report import save as save, view as view
    from .report.report import Report as Report
    from .runs.trained import trained as trained
    from .train.recipe import Recipe as Recipe

_PUBLIC = next(node for node in ast.parse(Path(__file__).read_text(encoding="utf-8")).body if isinstance(node, ast.If))
_MODULES = {  # of the names above; each is imported when its name is first used, since torch takes seconds
    alias.name: node.module for node in _PUBLIC.body if isinstance(node, ast.ImportFrom) for alias in node.names
}
__all__ = list(_MODULES)
__version__ = "0.1.0"


class _Root(Package):
    """This package: its public names, then its packages."""

    @property
    def save(self) -> Any:  # nnsight gives every object a `save`, which would come before ours
        return self.__getattr__("save")

    def __getattr__(self, name: str) -> Any:
        if name not in _MODULES:
            return super().__getattr__(name)
        value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
        if name != "save":
            setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), "__version__"]


sys.modules[__name__].__class__ = _Root
import_module(".lm.registration", __name__).register_with_transformers()  # after the line above, which tells packages
