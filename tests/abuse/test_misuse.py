"""Random junk for every argument of the Python API: an InputError of one line, or a right result."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

import sinkinterp as si
from sinkinterp import interventions
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.attention.shapes import ModelShape
from sinkinterp.checks import InputError
from sinkinterp.data.tokens import TokenSet
from sinkinterp.interventions import attention_layers, changes
from sinkinterp.interventions.changes import Operation
from sinkinterp.metrics import instruments

junk_settings = settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
TOKENS = torch.arange(24).reshape(2, 12)
DTYPES = (torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.float64, torch.complex64)


def tensor(shape, dtype, value):
    return torch.full(shape, value).to(dtype)


def array(shape, dtype, value):
    return np.full(shape, value).astype(dtype)


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
tensors = st.builds(tensor, shapes, st.sampled_from(DTYPES), st.integers(-2, 70))
arrays = st.builds(
    array, shapes, st.sampled_from(("?", "u1", "i2", "i8", "f4", "U3", "O", "M8[s]")), st.integers(0, 70)
)
numbers = st.one_of(
    st.booleans(), st.integers(-3, 20), st.floats(), st.integers(), st.just(10**40), st.just(np.int64(2)), st.just(2j)
)
things = st.sampled_from((None, len, int, object(), torch.nn.Linear(2, 2), Sigmoid(), interventions.Zero(), range(3)))
edits = st.sampled_from((si.SwapPositions(0, 1), interventions.RemoveColumn(), instruments.LOSS, si.SwapPositions))
leaves = st.one_of(numbers, st.text(max_size=5), st.binary(max_size=5), things, edits, tensors, arrays)
junk = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(("input_ids", "attention_mask", "x", 0)), inner, max_size=3),
        st.sets(st.integers(), max_size=3),
    ),
    max_leaves=6,
)


def outcome(call):
    """What the call returns; None where it is refused in one line. Anything else fails the test."""
    try:
        return call()
    except InputError as error:
        assert "\n" not in str(error) and len(str(error)) < 800
        return None


def is_right(report):
    """Whether a report holds importance between 0 and 1 of as many tokens as it says."""
    alpha = report.importance[~report.importance.isnan()]
    n, length = report.tokens.shape
    return bool(((alpha >= 0) & (alpha <= 1 + 1e-5)).all()) and (report.protocol.sequences, report.protocol.length) == (
        n,
        length,
    )


@given(tokens=junk)
@junk_settings
def test_any_tokens(subject, tokens):
    report = outcome(lambda: si.measure(subject, tokens))
    assert report is None or is_right(report)
    trace = outcome(lambda: subject.run(tokens))
    assert trace is None or trace.logits.shape[:2] == subject.ids_of(tokens).shape


def test_what_holds_tensors_is_equal_to_itself_alone(subject):
    for make in (lambda: subject.run(TOKENS), lambda: TokenSet.of(TOKENS, "some")):
        one, other = make(), make()
        assert one == one and one != other and len({one, other}) == 2


SHAPE = ModelShape(3, (0, 1, 2), 4, 2, 8, 32, 64, 16, (0, 1, 2))
CLASSES = tuple(
    kind
    for module in (attention_layers, changes)
    for name, kind in vars(module).items()
    if isinstance(kind, type)
    and name[0] != "_"
    and kind.__module__ == module.__name__
    and issubclass(kind, interventions.Edit | Operation)
    and kind not in (interventions.Edit, interventions.Change, Operation)
)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@given(
    values=st.lists(junk, max_size=2),
    names=st.dictionaries(st.sampled_from(("layers", "heads", "positions", "dims")), junk, max_size=2),
)
@settings(junk_settings, max_examples=8)
def test_any_edit_is_refused_or_fits_or_says_that_it_does_not(kind, values, names):
    def built():
        try:
            return kind(*values, **names)
        except TypeError as error:  # Python's own words for missing, surplus and unknown arguments
            assert "__init__()" in str(error) or "takes no arguments" in str(error)
            raise InputError("these are no arguments") from error

    edit = outcome(built)
    if isinstance(edit, interventions.Edit):
        assert "\n" not in repr(edit) and hash(edit) is not None
        outcome(lambda: edit.check(SHAPE, 12))
        outcome(lambda: edit.control(SHAPE, 12, torch.Generator()))
