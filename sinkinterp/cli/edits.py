"""The edit of `--edit "SwapPositions(0, 4)"`: a call of a public edit with literals, which is parsed and not run."""

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..checks import InputError, refusal

if TYPE_CHECKING:
    from ..interventions import Edit

EXAMPLE = "write a public edit with its values, such as SwapPositions(0, 4) or ZeroKeyBias()"


def edits_of(texts: Sequence[str]) -> "list[Edit]":
    """The edits of --edit, in their order. Raises InputError as `edit_of` does."""
    return [edit_of(text) for text in texts]


def edit_of(text: str) -> "Edit":
    """The edit of a text: a name of `sinkinterp.interventions`, called with literals, sites, kernels or operations.

    Raises InputError for anything else, and for values that the edit refuses.
    """
    from .. import interventions

    with refusal(f"{text!r:.80} is not an edit", EXAMPLE, (SyntaxError, ValueError, TypeError, RecursionError)):
        edit = _value(ast.parse(text.strip(), mode="eval").body)
    if not isinstance(edit, interventions.Edit):
        raise InputError(f"{text!r:.80} is not an edit; {EXAMPLE}")
    return edit


def _value(node: ast.expr) -> Any:
    """The value of a literal, a list or tuple of values, a site, or a call of a public name with values."""
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        named = {each.arg: _value(each.value) for each in node.keywords if each.arg is not None}
        if len(named) == len(node.keywords):  # no **mapping
            return _public(node.func.id)(*map(_value, node.args), **named)
    if isinstance(node, ast.Name):
        return _site(node.id)
    return ast.literal_eval(node)


def _site(name: str) -> Any:
    """The site of that name, such as RESIDUAL."""
    from ..attention import sites

    site = getattr(sites, name, None)
    if not isinstance(site, sites.Site):
        raise ValueError(f"there is no site {name}")
    return site


def _public(name: str) -> Any:
    """The edit, operation or kernel of that name."""
    from .. import interventions
    from ..attention import kernels

    if name in interventions.__all__:
        return getattr(interventions, name)
    kernel = getattr(kernels, name, None)
    if isinstance(kernel, type) and kernel.__module__ == kernels.__name__ and not name.startswith("_"):
        return kernel
    raise ValueError(f"there is no public edit {name}")
