import hashlib
import json
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest
from refusals import refused

from sinkinterp.attention import Edit
from sinkinterp.attention.masks import Causal, Window
from sinkinterp.data.backcopy import BigramBackcopy
from sinkinterp.lm.model import LMSpec
from sinkinterp.lm.variants import VARIANTS, attn
from sinkinterp.spec import Part, Spec, added_later
from sinkinterp.train.recipe import Recipe

RECIPE = Recipe(model=VARIANTS["sigmoid"], data=BigramBackcopy(spread=0.7, chain_seed=3), seed=5, steps=7)
SEVERAL = {"parts": (Causal(), Window(7) & Window(5)), "sizes": (3, 5), "pairs": ((2, Causal()), (7, Window(3)))}
SPECS = {**VARIANTS, "recipe": RECIPE, "nested masks": attn(mask=(Causal() & Window(7)) & Window(5))}


class SpecOfThisTest(Spec):
    size: float = 0.5
    inner: Spec = Causal()


class SeveralOfThisTest(Spec):
    parts: tuple[Spec, ...] = ()
    sizes: tuple[int, ...] = ()
    pairs: tuple[tuple[int, Spec], ...] = ()


def through_json(spec):
    return json.loads(json.dumps(spec.to_dict()))


def reversed_order(plain):
    return {k: reversed_order(v) if isinstance(v, dict) else v for k, v in reversed(plain.items())}


def one_change_each(spec):
    """Every spec that differs from `spec` in one number, at any depth."""
    for each in fields(spec):
        value = getattr(spec, each.name)
        changes = one_change_each(value) if isinstance(value, Spec) else [value + 1]
        yield from (change_of(spec, each.name, change) for change in changes)


def change_of(spec, name, value):
    copy = object.__new__(type(spec))  # unchecked, so that one size can change alone
    vars(copy).update(vars(spec) | {name: value})
    return copy


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_spec_survives_json_in_any_order(spec):
    plain = through_json(spec)
    for again in map(Spec.from_dict, (plain, reversed_order(plain))):
        assert again == spec and type(again) is type(spec) and again.key() == spec.key()


def test_a_key_is_the_hash_of_the_json_with_its_names_in_order():
    text = '{"inner": {"kind": "Causal"}, "kind": "SpecOfThisTest", "size": 0.5}'
    assert SpecOfThisTest().key() == hashlib.sha256(text.encode()).hexdigest()[:12]


def test_different_specs_have_different_keys():
    assert len({spec.key() for spec in SPECS.values()}) == len(SPECS)


def test_any_changed_field_at_any_depth_changes_the_key():
    changed = [spec.key() for spec in one_change_each(RECIPE)]
    assert len(changed) > 20
    assert len({RECIPE.key(), *changed}) == len(changed) + 1


@pytest.mark.parametrize("change", [{}, *({name: value} for name, value in SEVERAL.items()), SEVERAL])
def test_a_spec_with_tuples_survives_json(change):
    spec = SeveralOfThisTest(**change)
    again = Spec.from_dict(through_json(spec))
    assert again == spec and again.key() == spec.key() and hash(again) == hash(spec)


def test_the_order_and_the_number_of_parts_change_the_key():
    a, b = SEVERAL["parts"]
    keys = {SeveralOfThisTest(parts=parts).key() for parts in ((), (a,), (b,), (a, b), (b, a), (a, a))}
    assert len(keys) == 6


def test_a_kind_alone_changes_the_key():
    a, b = replace(LMSpec(), position=VARIANTS["softmax"].position), LMSpec()
    assert a.key() != b.key()
    assert Causal().key() != Spec().key()


def test_equal_specs_have_equal_keys_even_where_one_says_1_and_the_other_1_0():
    assert SpecOfThisTest(size=1) == SpecOfThisTest(size=1.0)
    assert SpecOfThisTest(size=1).key() == SpecOfThisTest(size=1.0).key()


@pytest.mark.parametrize("plain", [{"kind": "Nonsuch"}, {}, {"kind": "SpecOfThisTest", "inner": {"kind": "Nonsuch"}}])
def test_an_unknown_kind_names_the_fix(plain):
    refused(lambda: Spec.from_dict(plain))


def test_a_spec_of_another_family_is_refused():
    refused(lambda: Part.from_dict(Causal().to_dict()), "Causal")


def test_two_specs_with_one_name_are_refused():
    with pytest.raises(TypeError, match="Causal"):
        type("Causal", (Spec,), {})
    assert Spec.kinds["Causal"] is Causal


class GrownOfThisTest(Spec):
    old: int = 1
    new: int = added_later(2)


def test_a_field_that_came_later_changes_the_key_only_where_it_is_used():
    text = '{"kind": "GrownOfThisTest", "old": 3}'
    assert GrownOfThisTest(3).key() == hashlib.sha256(text.encode()).hexdigest()[:12] != GrownOfThisTest(3, 5).key()
    assert all(Spec.from_dict(through_json(spec)) == spec for spec in (GrownOfThisTest(3), GrownOfThisTest(3, 5)))


def test_an_edit_of_ones_own_is_a_frozen_dataclass():
    @dataclass(frozen=True)
    class Whole(Edit):
        one: int
        many: dict = field(default_factory=dict, kw_only=True, compare=False)

    value = Whole(7, many={"a": 1})
    assert value == Whole(7) != Whole(5) and hash(value) == hash(Whole(7)) and value.many == {"a": 1}
    assert replace(value, one=3) == Whole(3) and [f.name for f in fields(value)] == ["one", "many"]
    for name in ("one", "another"):
        with pytest.raises(FrozenInstanceError):
            setattr(value, name, 2)
    refused(Whole, "one")
