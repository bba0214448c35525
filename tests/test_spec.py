import hashlib
import json
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest
from refusals import refused

from sinkinterp.attention import Edit
from sinkinterp.attention.masks import Causal, Window
from sinkinterp.data.backcopy import BigramBackcopy
from sinkinterp.lm.variants import VARIANTS, attn
from sinkinterp.spec import Part, Spec, added_later
from sinkinterp.train.recipe import Recipe


class SpecOfThisTest(Spec):
    size: float = 0.5
    inner: Spec = Causal()


class SeveralOfThisTest(Spec):
    parts: tuple[Spec, ...] = ()
    sizes: tuple[int, ...] = ()
    pairs: tuple[tuple[int, Spec], ...] = ()


SEVERAL = {"parts": (Causal(), Window(7) & Window(5)), "sizes": (3, 5), "pairs": ((2, Causal()), (7, Window(3)))}
SPECS = {
    **VARIANTS,
    "recipe": Recipe(model=VARIANTS["sigmoid"], data=BigramBackcopy(spread=0.7, chain_seed=3), seed=5, steps=7),
    "nested masks": attn(mask=(Causal() & Window(7)) & Window(5)),
    "several": SeveralOfThisTest(**SEVERAL),
    **{f"several {name}": SeveralOfThisTest(**{name: value}) for name, value in SEVERAL.items()},
}


def through_json(spec):
    return json.loads(json.dumps(spec.to_dict()))


def reversed_order(plain):
    return {k: reversed_order(v) if isinstance(v, dict) else v for k, v in reversed(plain.items())}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_spec_survives_json_in_any_order_whose_hash_is_its_key(spec):
    """So two specs that differ in a kind, or in one number at any depth, have different keys."""
    plain = through_json(spec)
    assert spec.key() == hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]
    for again in map(Spec.from_dict, (plain, reversed_order(plain))):
        assert again == spec and type(again) is type(spec) and hash(again) == hash(spec)


def test_the_json_of_a_key_is_that_of_stored_rows():
    text = '{"inner": {"kind": "Causal"}, "kind": "SpecOfThisTest", "size": 0.5}'
    assert SpecOfThisTest().key() == hashlib.sha256(text.encode()).hexdigest()[:12]


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
