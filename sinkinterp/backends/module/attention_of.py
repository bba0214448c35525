"""Describes modules that write attention out (softmax of queries times keys), so that it is computed by one call."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import InputError
from ..exclusive import computed_by
from ..gap import Gap

_TOLERANCE = 1e-5  # of a module's output, relative to its largest entry


@dataclass(frozen=True)
class AttentionOf:
    """How the modules named `module` attend, such as "blocks.*.sa": by their parts, or by a function.

    queries, keys, values, output: names of linear maps inside such a module. "heads.*.key" is one map for each head.
    One name for all three is a fused map, queries first. heads: how many, where a map holds all of them.
    scale: of scores, 1/sqrt(d_head) by default. Attention is causal, and nothing is done to queries and keys.
    computes: for all other attention, a function that takes the module and what its `forward` takes, returns what that
    returns, and calls `torch.nn.functional.scaled_dot_product_attention` on queries `batch head pos d_head`.

    The function, or the parts, must return what the module does, up to 1e-5 of its largest entry.
    """

    module: str
    computes: Callable[..., Any] | None = None
    queries: str | None = None
    keys: str | None = None
    values: str | None = None
    output: str | None = None
    heads: int | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        if (self.computes is None) == (None in (self.queries, self.keys, self.values)):
            raise InputError("AttentionOf takes queries=, keys= and values= (names of linear maps), or computes=")
        names = (self.module, *filter(None, (self.queries, self.keys, self.values, self.output)))
        if not all(isinstance(name, str) for name in names) or not (self.computes is None or callable(self.computes)):
            raise InputError(f"AttentionOf takes names and a function; got {names!r:.60}, {self.computes!r:.40}")

    def compute(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """What the module returns for these arguments."""
        if self.computes is not None:
            return self.computes(module, *args, **kwargs)
        x, *_ = (*args, *kwargs.values())
        q, k, v = (
            self._heads(module, i, name or "", x) for i, name in enumerate((self.queries, self.keys, self.values))
        )
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=len(q[0]) != len(k[0]))
        z = z.transpose(1, 2).flatten(2)
        return z if self.output is None else module.get_submodule(self.output)(z)

    def _heads(self, module: nn.Module, part: int, name: str, x: Tensor) -> Tensor:
        """Queries (part 0), keys (1) or values (2), `batch head pos d`."""
        made = [each(x) for each in _named(module, name).values()]
        if "*" in name:
            return torch.stack(made, 1)
        if self.heads is None:
            raise InputError(f"AttentionOf: {name!r} holds all heads; say how many, heads=...")
        whole = made[0].chunk(3, -1)[part] if self.queries == self.keys == self.values else made[0]
        return whole.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def _named(module: nn.Module, pattern: str) -> dict[str, nn.Module]:
    """The modules inside a module whose names fit a pattern. Raises InputError where there is none."""
    depth = pattern.count(".")
    found = {n: m for n, m in module.named_modules() if n.count(".") == depth and fnmatchcase(n, pattern)}
    if not found:
        raise InputError(f"AttentionOf: {type(module).__name__} has no modules {pattern!r}")
    return found


def described(
    model: nn.Module, attention: AttentionOf | None, name: str = "", checks: bool = False
) -> AbstractContextManager[None]:
    """In the block, the modules that are described compute attention as the description says.

    checks: whether InputError is raised where they then return something else than they did.
    """
    if attention is None:
        return nullcontext()
    modules = _named(model, attention.module)
    functions: dict[nn.Module, Callable[..., Any]] = {m: partial(attention.compute, m) for m in modules.values()}
    if checks:
        functions = {m: partial(_checked, f"{name}: {at}", m.forward, functions[m]) for at, m in modules.items()}
    return computed_by(functions)


def _checked(where: str, original: Callable[..., Any], described: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    out = described(*args, **kwargs)
    theirs, ours = (x[0] if isinstance(x, tuple) else x for x in (original(*args, **kwargs), out))
    gap = Gap.of(ours, theirs)
    if not gap.is_within(_TOLERANCE):
        raise InputError(f"{where}: attention as described is {gap}; check its scale, mask, order and names")
    return out
