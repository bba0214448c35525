import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from backends import zoo
from lm.family import SPECS, model_of
from refusals import refused

import sinkinterp as si
from sinkinterp.attention.kernels import Kernel, Sigmoid, Unit
from sinkinterp.attention.masks import Causal, Mask, Window
from sinkinterp.data.backcopy import BigramBackcopy, BosFirst
from sinkinterp.data.packing import PackedText
from sinkinterp.data.sources import PythonCode
from sinkinterp.data.texts import Texts
from sinkinterp.lm.attention import Learned
from sinkinterp.lm.block import FFN, Relu
from sinkinterp.lm.model import LMSpec, build
from sinkinterp.lm.variants import VARIANTS, attn
from sinkinterp.spec import Spec, changed
from sinkinterp.train.loop import Task, held_out_tokens, prepared
from sinkinterp.train.recipe import (
    RECIPES,
    ConstantRate,
    CooldownRate,
    CosineRate,
    Everything,
    MapsAndTokens,
    NextToken,
    PrefixLM,
    Recipe,
    demo_recipe,
    on_text,
    parameter_groups,
    with_variant,
)


class SeesThree(Mask):
    """The past, and the first three tokens."""

    def allows(self, query, key):
        return (key <= query) | (key < 3)


HALF_WAY_DOWN = 2 * (0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2)
RATES = [  # steps, warm-up, peak, schedule; rates at steps
    (1000, 100, 1.0, CooldownRate(0.2), {50: 0.5, 100: 1, 800: 1, 900: 0.55, 1000: 0.1}),
    (70, 7, 3.0, ConstantRate(), {1: 3 / 7, 7: 3, 8: 3, 70: 3}),
    (70, 0, 3.0, ConstantRate(), {1: 3}),
    (110, 10, 2.0, CosineRate(floor=0.2), {5: 1, 10: 2, 35: HALF_WAY_DOWN, 60: 1.2, 110: 0.4}),
]


@pytest.mark.parametrize(("steps", "warmup", "lr", "schedule", "rates"), RATES)
def test_rates_worked_by_hand(steps, warmup, lr, schedule, rates):
    recipe = Recipe(steps=steps, warmup=warmup, lr=lr, schedule=schedule)
    assert [recipe.rate(step) for step in rates] == pytest.approx([*rates.values()])


BEYOND = """
steps=0 batch=0 batch=-1 micro_batch=0 lr=0 weight_decay=-1 warmup=-1 clip=0 threads=0 threads=1e9 watch_every=0
save_every=0 seed=-1 schedule.last=0 schedule.last=1 schedule.floor=-1 schedule.floor=2 model.n_layers=0 model.n_heads=0
model.n_heads=-2 model.n_heads=3 model.n_heads=64 model.d_model=-2 model.d_model=7 model.vocab=0 model.vocab=7
model.n_ctx=0 model.n_ctx=3 model.norm_eps=-1 model.ffn.width=0 model.ffn.width=-1 model.ffn=Causal model.init=Relu
model.position=Relu model.attention.slots=Nothing model.attention.gate=RMSQKNorm data=Causal data.length=-1
data.length=1 data.vocab=0 data.vocab=1 data.n_triggers=-1 data.n_triggers=65 data.rank=0 objective.prefix=0 steps.x=1
"""  # settings that no recipe of the demo can have


def test_no_field_at_any_depth_takes_what_is_beyond_its_bounds():
    for setting in BEYOND.split():
        refused(partial(changed, demo_recipe("softmax", seed=0), [setting]), setting.partition("=")[0].split(".")[-1])


def test_a_prefix_lm_predicts_the_tokens_after_the_prefix_alone():
    tokens = torch.arange(1, 15).view(2, 7)
    assert NextToken().labels(tokens) is tokens
    labels = PrefixLM(3).labels(tokens)
    assert labels.tolist() == [[-100] * 3 + [4, 5, 6, 7], [-100] * 3 + [11, 12, 13, 14]]
    assert tokens[0, 0] == 1


def test_the_loss_of_a_prefix_lm_is_the_mean_over_later_tokens():
    model, tokens = build(VARIANTS["softmax"]), BigramBackcopy().sample(5, "prefix")
    logits = model(tokens).logits.log_softmax(-1)
    want = -logits[:, 3:-1].gather(2, tokens[:, 4:, None]).mean()
    torch.testing.assert_close(model(tokens, labels=PrefixLM(4).labels(tokens)).loss, want)


def test_a_mask_that_shows_what_is_to_be_predicted_is_refused():
    model = attn(mask=SeesThree())
    refused(lambda: Recipe(model=model), "prefix=3")
    refused(lambda: Recipe(model=model, objective=PrefixLM(2)), "prefix=3")
    assert Recipe(model=model, objective=PrefixLM(3)).objective.first == 3


@pytest.mark.parametrize("name", SPECS)
def test_parameter_groups_cover_the_model_once(name):
    trained = [p for p in model_of(name).parameters() if p.requires_grad]
    for decay in (MapsAndTokens(), Everything()):
        grouped = [p for group in parameter_groups(model_of(name), decay, 1.0) for p in group["params"]]
        assert len(grouped) == len(trained) and {id(p) for p in grouped} == {id(p) for p in trained}


def test_transposed_maps_of_gpt2_are_decayed():
    model = zoo.model_of("gpt2")
    decayed = {id(p) for p in parameter_groups(model, MapsAndTokens(), 1.0)[0]["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in decayed and p.ndim > 1}
    maps = {f"transformer.h.{i}.{part}.weight" for i in range(3) for part in
            ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")}  # fmt: skip
    assert names == maps | {"transformer.wte.weight"}


def test_gains_positions_and_slots_are_not_decayed_unless_everything_is():
    model = build(VARIANTS["k_bias"])
    free = {id(p) for p in parameter_groups(model, MapsAndTokens(), 1.0)[1]["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in free}
    block = ("input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.slots.key")
    in_block = {f"model.layers.0.{name}" for name in block}
    assert names == {"model.position.table.weight", "model.norm.weight"} | in_block
    assert parameter_groups(model, Everything(), 1.0)[1]["params"] == []


def test_the_demo_recipe_holds_the_variant_itself():
    for name, spec in VARIANTS.items():
        objective = PrefixLM(int(name.removeprefix("prefix_"))) if name.startswith("prefix_") else NextToken()
        assert with_variant(RECIPES["demo"], name) == Recipe(model=spec, objective=objective)


def test_an_architecture_is_a_change_of_the_recipes_own_at_its_sizes():
    """A recipe with rotary positions gets learned ones where they are asked for, and keeps its own for softmax."""
    paper, relu = RECIPES["paper-60m"], VARIANTS["relu_attention"].attention.kernel
    assert with_variant(paper, "softmax") == paper and with_variant(paper, "rotary") == paper
    for name, model in {
        "learned": replace(paper.model, position=Learned()),
        "sigmoid": attn(paper.model, kernel=VARIANTS["sigmoid"].attention.kernel),
        "relu": replace(paper.model, ffn=FFN(1536, Relu())),
        "sigmoid_length": attn(paper.model, kernel=Kernel(similarity=Sigmoid(2048.0), normaliser=Unit())),
        "relu_attention": attn(paper.model, kernel=replace(relu, alpha=1 / 2048)),
    }.items():
        assert with_variant(paper, name).model == model, name
    refused(lambda: with_variant(paper, "no_such"), "no_such")


def weights(spec: LMSpec) -> int:
    """Counted by hand for Llama with equally many key and query heads, embeddings included."""
    block = 4 * spec.d_model**2 + 3 * spec.d_model * spec.ffn.width + 2 * spec.d_model
    return spec.n_layers * block + spec.d_model + 2 * spec.vocab * spec.d_model


def test_the_papers_models_have_the_papers_sizes():
    assert weights(RECIPES["paper-60m"].model) == 136_462_080
    assert weights(RECIPES["paper-1b"].model) == pytest.approx(1.337e9, rel=1e-3)
    with torch.device("meta"):
        model = build(RECIPES["paper-60m"].model)
    assert sum(p.numel() for p in model.parameters()) == 136_462_080
    recipe = RECIPES["paper-60m"]
    assert recipe.batch * recipe.data.length * recipe.steps == pytest.approx(21e9, rel=0.01)


def test_a_recipe_on_your_text_asks_for_it_and_a_task_that_needs_no_preparation_is_itself(tmp_path):
    refused(lambda: prepared(RECIPES["paper-60m"].data, tmp_path))
    task = BigramBackcopy()
    assert prepared(task, tmp_path) is task and isinstance(task, Task)


def test_a_text_stands_in_for_a_recipes_data_and_begins_as_they_do():
    code = on_text(RECIPES["text"], "code").data
    assert code == RECIPES["text"].data == PackedText(source=PythonCode(), length=128, bos=True)
    assert on_text(RECIPES["text"], "embedded").data == PackedText(length=128, bos=True)
    assert on_text(RECIPES["demo"], Path("a.txt")).data == PackedText(source=Texts("a.txt"), length=16, bos=False)


class MaybeOfThisTest(Spec):
    size: int | None = 3


def test_a_field_that_may_be_empty_takes_none():
    assert changed(MaybeOfThisTest(), ["size=none"]).size is None
    assert changed(MaybeOfThisTest(), ["size=5"]).size == 5
    refused(lambda: changed(MaybeOfThisTest(), ["size=x"]), "size")


DEEPER, ONE_MORE = replace(LMSpec(), n_layers=4, norm_eps=1.0), replace(LMSpec(), vocab=65)
MASK = "model.attention.mask"
CHANGED = {
    "": Recipe(),
    "lr=1e-2 steps=2000 bf16=true micro_batch=7": Recipe(lr=0.01, steps=2000, bf16=True, micro_batch=7),
    "model.n_layers=4 model.norm_eps=1": Recipe(model=DEEPER),
    "schedule.floor=0.5 schedule=CosineRate": Recipe(schedule=CosineRate(0.5)),  # a kind is set before its fields
    "data.vocab=65 model.vocab=65 data.first=BosFirst":  # which fit only together
        Recipe(model=ONE_MORE, data=BigramBackcopy(vocab=65, first=BosFirst())),
    f"{MASK}=Both {MASK}.left=Causal {MASK}.right=Window {MASK}.right.width=5":  # kinds without defaults
        Recipe(model=attn(LMSpec(), mask=Causal() & Window(5))),
}  # fmt: skip


@pytest.mark.parametrize("settings", CHANGED)
def test_settings_are_read_by_the_types_of_their_fields_whatever_the_order(settings):
    recipe = changed(Recipe(), settings.split())
    assert recipe == CHANGED[settings] and type(recipe.model.norm_eps) is float


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("lrr=1", "no setting 'lrr'; Recipe has"),
        ("n_layers=4", "no setting 'n_layers'"),
        ("model.lr.x=4", "no setting 'model.lr.x'"),
        ("zzz=1", "no setting 'zzz'; Recipe has "),
        ("lr=fast", "'fast'"),
        ("steps=2.5", "'2.5'"),
        ("bf16=maybe", "true or false"),
        ("data=Causal", "BigramBackcopy"),
        ("schedule=Causal", "ConstantRate, CooldownRate, CosineRate"),
        ("schedule=CooldownRate,", "schedule takes"),
        ("model.attention.mask=Window", "width"),
        ("model.vocab=97", "model.vocab=64"),
        ("lr", "key=value"),
        ("=3", "key=value"),
    ],
)
def test_an_unknown_setting_is_one_line_with_the_known_ones(setting, message):
    refused(lambda: changed(Recipe(), [setting]), message)


@pytest.mark.timeout(600)
def test_softmax_makes_a_drained_sink_of_bos_and_none_of_the_token_behind_it(tmp_path):
    data = BigramBackcopy(vocab=65, length=32, first=BosFirst())
    model = replace(si.VARIANTS["softmax"], vocab=65, n_ctx=32)
    recipe = si.Recipe(model=model, data=data, steps=140, batch=32, lr=2e-2, warmup=20, weight_decay=0.1)
    report = si.measure(si.trained(recipe, tmp_path).subject(), held_out_tokens(data, 64))
    assert report.sink_rate().mean > 0.9 and report.sink_rate(1).mean == 0
    assert report.alpha().mean() > 0.5 and report.value_ratio().mean() < 0.5
