from dataclasses import dataclass

import pytest
from refusals import refused

from sinkinterp.attention.masks import Causal, Window
from sinkinterp.data.backcopy import BigramBackcopy, BosFirst
from sinkinterp.errors import InputError
from sinkinterp.lm.position_schemes import Rotary
from sinkinterp.spec import Spec
from sinkinterp.train.recipe import CosineRate, Recipe
from sinkinterp.train.settings import changed


def test_values_are_parsed_by_the_type_of_their_field():
    settings = ["lr=1e-2", "steps=2e3", "bf16=true", "micro_batch=7", "model.n_layers=4", "model.norm_eps=1"]
    recipe = changed(Recipe(), settings)
    assert (recipe.lr, recipe.steps, recipe.bf16, recipe.micro_batch) == (0.01, 2000, True, 7)
    assert recipe.model.n_layers == 4 and type(recipe.model.norm_eps) is float
    assert changed(Recipe(), []) == Recipe()


@dataclass(frozen=True)
class MaybeOfThisTest(Spec):
    size: int | None = 3


def test_a_field_that_may_be_empty_takes_none():
    assert changed(MaybeOfThisTest(), ["size=none"]).size is None
    assert changed(MaybeOfThisTest(), ["size=5"]).size == 5
    refused(lambda: changed(MaybeOfThisTest(), ["size=x"]), "size")


def test_a_kind_is_set_before_its_fields_whatever_the_order():
    recipe = changed(Recipe(), ["schedule.floor=0.5", "schedule=CosineRate", "model.position=Rotary"])
    assert recipe.schedule == CosineRate(0.5) and recipe.model.position == Rotary()
    bos = changed(Recipe(), ["data.vocab=65", "model.vocab=65", "data.first=BosFirst"])  # which fit only together
    assert bos.data == BigramBackcopy(vocab=65, first=BosFirst()) and bos.model.vocab == 65


def test_a_kind_without_defaults_takes_its_fields_beside_it():
    settings = ["model.attention.mask=Both", "model.attention.mask.left=Causal", "model.attention.mask.right=Window"]
    recipe = changed(Recipe(), [*settings, "model.attention.mask.right.width=5"])
    assert recipe.model.attention.mask == Causal() & Window(5)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("lrr=1", "no setting 'lrr'; near ones: lr"),
        ("n_layers=4", "near ones: model.n_layers"),
        ("model.lr.x=4", "no setting 'model.lr.x'"),
        ("zzz=1", "near ones: seed, steps"),
        ("lr=fast", "lr takes a number; got 'fast'"),
        ("steps=2.5", "steps takes a whole number; got '2.5'"),
        ("bf16=maybe", "bf16 takes true or false"),
        ("data=Causal", "data takes BigramBackcopy, "),
        ("schedule=Causal", "schedule takes ConstantRate, CooldownRate, CosineRate; got 'Causal'"),
        ("schedule=CooldownRate,", "schedule takes"),
        ("model.attention.mask=Window", "width"),
        ("model.vocab=97", "give both the same symbols"),
        ("lr", "a setting is key=value"),
        ("=3", "a setting is key=value"),
    ],
)
def test_an_unknown_setting_is_one_line_with_the_known_ones(setting, message):
    with pytest.raises(InputError) as caught:
        changed(Recipe(), [setting])
    assert message in str(caught.value)
