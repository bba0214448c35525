"""Mechanistic interpretability of attention sinks: read them, move them, train them away.

import sinkinterp as si

subject = si.load("gpt2")
report = si.measure(subject, tokens)
moved = si.measure(subject, tokens, edits=[si.SwapPositions(0, 4)])
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ._registration import register_with_transformers

if TYPE_CHECKING:
    from .adapters.loading import load as load
    from .adapters.patched import patched as patched
    from .interventions.normalisation import PatchNormalization as PatchNormalization
    from .interventions.positions import SwapPositions as SwapPositions
    from .lm.variants import VARIANTS as VARIANTS
    from .measurement import measure as measure
    from .report import Report as Report
    from .study import trained as trained
    from .sweeping import sink_rate as sink_rate
    from .sweeping import sweep as sweep
    from .tabulate import compare as compare
    from .train.recipe import Recipe as Recipe

_HOMES = {
    "load": "adapters.loading",
    "measure": "measurement",
    "Report": "report",
    "compare": "tabulate",
    "sweep": "sweeping",
    "sink_rate": "sweeping",
    "patched": "adapters.patched",
    "SwapPositions": "interventions.positions",
    "PatchNormalization": "interventions.normalisation",
    "VARIANTS": "lm.variants",
    "Recipe": "train.recipe",
    "trained": "study",
}
__all__ = list(_HOMES)
__version__ = "0.1.0"

register_with_transformers()


def __getattr__(name: str) -> Any:
    """A public name, or a module of the package such as `sinkinterp.tabulate`, imported when it is first asked for."""
    if name in _HOMES:
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    elif not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        value = import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module 'sinkinterp' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)
