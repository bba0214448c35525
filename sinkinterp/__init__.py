"""Mechanistic interpretability of attention sinks: read them, move them, train them away.

import sinkinterp as si

report = si.measure("gpt2", "Language models pour attention onto their first token.")
report.summary()
moved = si.measure("gpt2", text, edits=si.SwapPositions(0, 4))
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .checks import fix_of, nearest
from .lm.registration import register_with_transformers

if TYPE_CHECKING:
    from .applications.mend import mend as mend
    from .applications.outliers import mask as mask
    from .attention import sites as sites
    from .backends.load import load as load
    from .backends.mended import with_adapter as with_adapter
    from .backends.mended import without_adapter as without_adapter
    from .backends.module.attention_of import AttentionOf as AttentionOf
    from .backends.patched import patched as patched
    from .interventions.normalisation import PatchNormalization as PatchNormalization
    from .interventions.positions import SwapPositions as SwapPositions
    from .lm.variants import VARIANTS as VARIANTS
    from .measurement.activation_patching import activation_patching as activation_patching
    from .measurement.explain.explaining import explain as explain
    from .measurement.maps import attention_map as attention_map
    from .measurement.measure import measure as measure
    from .measurement.sweep import sink_rate as sink_rate
    from .measurement.sweep import sweep as sweep
    from .measurement.watching import SinkCallback as SinkCallback
    from .pages.export import save as save
    from .pages.report import view as view
    from .report.compare import compare as compare
    from .report.patterns import sinks as sinks
    from .report.report import Report as Report
    from .runs.trained import trained as trained
    from .train.recipe import Recipe as Recipe

_MODULES = {  # of the public names; each is imported when its name is first used, since torch takes seconds
    "sites": "attention",
    "load": "backends.load",
    "AttentionOf": "backends.module.attention_of",
    "measure": "measurement.measure",
    "Report": "report.report",
    "compare": "report.compare",
    "attention_map": "measurement.maps",
    "view": "pages.report",
    "save": "pages.export",
    "sinks": "report.patterns",
    "mask": "applications.outliers",
    "sweep": "measurement.sweep",
    "sink_rate": "measurement.sweep",
    "activation_patching": "measurement.activation_patching",
    "explain": "measurement.explain.explaining",
    "patched": "backends.patched",
    "mend": "applications.mend",
    "with_adapter": "backends.mended",
    "without_adapter": "backends.mended",
    "SinkCallback": "measurement.watching",
    "SwapPositions": "interventions.positions",
    "PatchNormalization": "interventions.normalisation",
    "VARIANTS": "lm.variants",
    "Recipe": "train.recipe",
    "trained": "runs.trained",
}
__all__ = list(_MODULES)
__version__ = "0.1.0"

register_with_transformers()


class _Root(ModuleType):
    """This package. nnsight gives every object a `save`, which would come before the lazy name."""

    @property
    def save(self) -> Any:
        return __getattr__("save")


sys.modules[__name__].__class__ = _Root


def __getattr__(name: str) -> Any:
    """A public name, or a package or module of this one such as `sinkinterp.report`, imported on first use."""
    if name in _MODULES:
        value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    elif not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        value = import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module 'sinkinterp' has no attribute {name!r}{_fix(name)}")
    globals()[name] = value
    return value


def _fix(name: str) -> str:
    """What to write in place of a name that is not here."""
    if fix := fix_of(name, "si"):
        return fix
    place = None if name.startswith("_") else next((place for place in _places() if _is_of(place, name)), None)
    return nearest(name, __dir__()) if place is None else f"; write from sinkinterp.{place} import {name}"


def _places() -> list[str]:
    """Where people look for a name: the first places that have it are those that the documents write."""
    packages = ("measurement", "measurement.explain", "applications")
    found = [iter_modules(import_module(f".{name}", __name__).__path__, f"{name}.") for name in packages]
    return [
        "interventions",
        "attention.kernels",
        "metrics.instruments",
        *(x.name for modules in found for x in modules),
    ]


def _is_of(place: str, name: str) -> bool:
    """Whether a package or module has a name that it has not imported from elsewhere."""
    module = import_module(f".{place}", __name__)
    found = getattr(module, name, module)
    home = getattr(found, "__module__", module.__name__)
    return not isinstance(found, ModuleType) and home.startswith(module.__name__)


def __dir__() -> list[str]:
    modules = (module.name for module in iter_modules(__path__))
    return sorted([*_MODULES, "__version__", *(name for name in modules if not name.startswith("_"))])
