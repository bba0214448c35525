"""The public names and their homes: type checkers read them here, and the package imports a name when it is used."""

from . import interventions as interventions, measurement as measurement
from .applications.mend import mend as mend
from .applications.outliers import mask as mask
from .attention import sites as sites
from .backends.adapters import with_adapter as with_adapter, without_adapter as without_adapter
from .backends.load import load as load
from .backends.module_subject import AttentionOf as AttentionOf, ModuleParts as ModuleParts
from .backends.patched import patched as patched
from .backends.subject import Subject as Subject
from .checks import InputError as InputError
from .data.texts import texts as texts
from .interventions.attention_layers import PatchNormalization as PatchNormalization
from .interventions.changes import SwapPositions as SwapPositions
from .lm.variants import VARIANTS as VARIANTS
from .measurement.activation_patching import activation_patching as activation_patching, twin_patching as twin_patching
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
from .pages.report import save as save, view as view
from .report.report import Report as Report
from .runs.experiment import reproduce as reproduce
from .runs.trained import trained as trained
from .table import Table as Table
from .train.recipe import Recipe as Recipe

__version__: str
__all__: list[str]
