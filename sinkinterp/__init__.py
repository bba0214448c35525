"""Mechanistic interpretability of attention sinks: read them, move them, train them away.

import sinkinterp as si

report = si.measure("gpt2", "Language models pour attention onto their first token.")
report.summary()
moved = si.measure("gpt2", text, edits=si.SwapPositions(0, 4))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from . import interventions as interventions, measurement as measurement
    from .applications.mend import mend as mend
    from .applications.outliers import mask as mask
    from .attention import sites as sites
    from .backends.load import load as load
    from .backends.mended import with_adapter as with_adapter, without_adapter as without_adapter
    from .backends.module.module_subject import AttentionOf as AttentionOf, ModuleParts as ModuleParts
    from .backends.patched import patched as patched
    from .backends.subject import Subject as Subject
    from .checks import InputError as InputError
    from .data.texts import texts as texts
    from .interventions.attention_layers import PatchNormalization as PatchNormalization
    from .interventions.positions import SwapPositions as SwapPositions
    from .lm.variants import VARIANTS as VARIANTS
    from .measurement.activation_patching import (
        activation_patching as activation_patching,
        twin_patching as twin_patching,
    )
    from .measurement.explaining import explain as explain
    from .measurement.maps import attention_map as attention_map, sinks as sinks
    from .measurement.measure import measure as measure
    from .measurement.path_patching import path_patching as path_patching
    from .measurement.place_or_token import place_or_token as place_or_token
    from .measurement.quantities import (
        attention_weights as attention_weights,
        compare as compare,
        hidden_states as hidden_states,
        key_norms as key_norms,
        loss as loss,
        massive_activations as massive_activations,
        qk_angles as qk_angles,
        qk_cosines as qk_cosines,
        residual_norms as residual_norms,
        sink_rate as sink_rate,
        value_norms as value_norms,
    )
    from .measurement.sweep import sweep as sweep
    from .measurement.watching import SinkCallback as SinkCallback
    from .metrics.estimates import Estimate as Estimate
    from .pages.report import view as view
    from .report.report import Report as Report
    from .runs.experiment import reproduce as reproduce
    from .runs.trained import trained as trained
    from .table import Table as Table
    from .train.recipe import Recipe as Recipe

__version__ = "0.1.0"
__all__ = [
    "VARIANTS",
    "AttentionOf",
    "Estimate",
    "InputError",
    "ModuleParts",
    "PatchNormalization",
    "Recipe",
    "Report",
    "SinkCallback",
    "Subject",
    "SwapPositions",
    "Table",
    "activation_patching",
    "attention_map",
    "attention_weights",
    "compare",
    "explain",
    "hidden_states",
    "key_norms",
    "load",
    "loss",
    "mask",
    "massive_activations",
    "measure",
    "mend",
    "patched",
    "path_patching",
    "place_or_token",
    "qk_angles",
    "qk_cosines",
    "reproduce",
    "residual_norms",
    "save",
    "sink_rate",
    "sinks",
    "sites",
    "sweep",
    "texts",
    "trained",
    "twin_patching",
    "value_norms",
    "view",
    "with_adapter",
    "without_adapter",
]  # fmt: skip
_NAMES = {  # the public names of each module, which is imported when one is first used: torch takes seconds
    "applications.mend": "mend",
    "applications.outliers": "mask",
    "attention": "sites",
    "backends.load": "load",
    "backends.mended": "with_adapter without_adapter",
    "backends.module.module_subject": "AttentionOf ModuleParts",
    "backends.patched": "patched",
    "backends.subject": "Subject",
    "checks": "InputError",
    "data.texts": "texts",
    "interventions.attention_layers": "PatchNormalization",
    "interventions.positions": "SwapPositions",
    "lm.variants": "VARIANTS",
    "measurement.activation_patching": "activation_patching twin_patching",
    "measurement.explaining": "explain",
    "measurement.maps": "attention_map sinks",
    "measurement.measure": "measure",
    "measurement.path_patching": "path_patching",
    "measurement.place_or_token": "place_or_token",
    "measurement.quantities": "attention_weights compare hidden_states key_norms loss massive_activations qk_angles "
    "qk_cosines residual_norms sink_rate value_norms",
    "measurement.sweep": "sweep",
    "measurement.watching": "SinkCallback",
    "metrics.estimates": "Estimate",
    "pages.report": "view",
    "report.report": "Report",
    "runs.experiment": "reproduce",
    "runs.trained": "trained",
    "table": "Table",
    "train.recipe": "Recipe",
}
_PACKAGES = ("interventions", "measurement")  # which documents name
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def save(what: "Any", path: "Path | str", *, width: float = 5.5, height: float | None = None) -> "Path":
    """Writes a figure, a table, a report or a page, and returns the path; see `sinkinterp.pages.report.save`."""
    written: Path = import_module(".pages.report", __name__).save(what, path, width=width, height=height)
    return written


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f".{name}", __name__)
    if name not in _HOMES:
        from .files import data_of

        hint = data_of("coming_from.toml")["names"].get(name, "")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint and f'; {hint}'}", name=name)
    value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
