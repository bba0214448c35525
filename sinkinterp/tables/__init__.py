"""From reports to tables: every number with its interval, its null and its protocol.

No function here is named as a module of this package, so that neither can hide the other.
"""

from .comparison import compare
from .domains import sinks_by_domain
from .exhibits import Exhibit, TokenText
from .heads import score_gaps_by_head, sinks_by_head, strongest_head, top_heads, writes_by_head
from .json import tables_as_json
from .massive import Surface, largest_entries, residual_surface
from .norms import norms_by_kind, token_kinds
from .note import protocol_note, public_name, short_name
from .overview import overview_tables
from .positions import loss_by_position, secondary_by_token, sinks_by_epsilon, sinks_by_position, sinks_by_token
from .qk import qk_distributions, qk_means_by_head
from .registry import EXHIBITS, exhibits_of
from .residual import massive_by_block, residual_norms_by_block
from .series import sinks_by_length, training_history
from .summary import sink_summary
from .verdict import protocol_table, sink_verdict

__all__ = [
    "EXHIBITS",
    "Exhibit",
    "Surface",
    "TokenText",
    "compare",
    "exhibits_of",
    "largest_entries",
    "loss_by_position",
    "massive_by_block",
    "norms_by_kind",
    "overview_tables",
    "protocol_note",
    "protocol_table",
    "public_name",
    "qk_distributions",
    "qk_means_by_head",
    "residual_norms_by_block",
    "residual_surface",
    "score_gaps_by_head",
    "secondary_by_token",
    "short_name",
    "sink_summary",
    "sink_verdict",
    "sinks_by_domain",
    "sinks_by_epsilon",
    "sinks_by_head",
    "sinks_by_length",
    "sinks_by_position",
    "sinks_by_token",
    "strongest_head",
    "tables_as_json",
    "token_kinds",
    "top_heads",
    "training_history",
    "writes_by_head",
]
