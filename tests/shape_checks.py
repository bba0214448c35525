"""Checks of shapes in a test's first calls: a module of its own, which torch.compile can import by its name."""

from collections import Counter
from dataclasses import is_dataclass
from functools import partial, wraps
from inspect import isclass, isgeneratorfunction
from typing import get_args

from jaxtyping import AbstractArray, config, jaxtyped

CHECKED = 16  # calls of one function, in one test, whose shapes are checked: its later calls are alike
calls_of = Counter()  # in this test


def checked_where_it_states_shapes(made=None, *, typechecker=None):
    """In place of `jaxtyped`, which `--jaxtyping-packages` puts before everything; mypy holds the types of the rest."""
    if made == "context":
        return jaxtyped(made)
    if made is None:
        return partial(checked_where_it_states_shapes, typechecker=typechecker)
    hints = [*getattr(made, "__annotations__", {}).values()]
    if not any(map(states_shapes, hints)) or made.__qualname__ == "SinkAttention.forward":  # nnsight runs its source
        return made
    if is_dataclass(made):
        made.__init__ = first_calls(made.__init__, jaxtyped(made, typechecker=typechecker).__init__)
        return made
    if isclass(made) or isgeneratorfunction(made) or "{" in str(hints):  # sizes that are the values of arguments
        return jaxtyped(made, typechecker=typechecker)
    checked = typechecker(made)

    def in_one_set_of_sizes(*args, **kwargs):  # what jaxtyped does, which looks at every argument three times
        with jaxtyped("context"):
            return checked(*args, **kwargs)

    return first_calls(made, in_one_set_of_sizes)


def first_calls(made, checked):
    """A function that is checked in its first calls in a test, unless checks are off."""

    @wraps(made)
    def called(*args, **kwargs):
        if config.jaxtyping_disable or calls_of[made] >= CHECKED:
            return made(*args, **kwargs)
        calls_of[made] += 1
        return checked(*args, **kwargs)

    return called


def states_shapes(hint):
    """Whether an annotation names axes, by itself or inside."""
    if isinstance(hint, list | tuple):  # what a Callable takes
        return any(map(states_shapes, hint))
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or states_shapes(get_args(hint) or ())
