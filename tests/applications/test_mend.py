"""Mending: attention that is taken off a key goes into the slot, and the adapter comes off without a trace."""

import json
import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from backends.zoo import CONFIGS, model_of
from refusals import refused
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

import sinkinterp as si
from sinkinterp.applications.mend import mend_recipe, mended
from sinkinterp.attention.call import AttentionCall
from sinkinterp.attention.slots import SinkLogit, SlotRow
from sinkinterp.backends import adapters
from sinkinterp.backends.adapters import AllWeights, Lora, SlotsAlone, fingerprint
from sinkinterp.cli.main import app
from sinkinterp.data.tokenizers import ByteBPE, beginning_with_bos

FAMILIES = [name for name in CONFIGS if name not in ("gpt-oss with sink logits", "jamba with mamba layers")]
TOKENS = torch.randint(97, (3, 19), generator=torch.Generator().manual_seed(5))


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(before, after):
    return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@torch.no_grad()
def logits(model):
    return model.eval()(TOKENS, use_cache=False).logits


@pytest.mark.parametrize("slot", ["none", "logit", "row"])
@pytest.mark.parametrize("softcap", [None, 7.0])
@pytest.mark.parametrize("window", [None, 5])
def test_the_mass_of_a_key_is_its_column_of_the_pattern_with_the_same_gradients(slot, softcap, window):
    q, k, v = (torch.randn(2, heads, 13, 6, requires_grad=True) for heads in (4, 2, 2))
    logit, row = (torch.randn(shape, requires_grad=True) for shape in ((4,), (4, 1, 6)))
    slots = {"none": None, "logit": SinkLogit(logit), "row": SlotRow(row, torch.zeros(4, 1, 6))}
    mask = None if window is None else torch.ones(13, 13).tril().triu(-window).bool()[None, None]
    call = AttentionCall(0, q, k, v, scale=0.4, mask=mask, softcap=softcap, slot=slots[slot])
    inputs = [q, k, v, *({"logit": [logit], "row": [row]}.get(slot, []))]
    pattern = call.pattern()
    dense = call.mix(pattern), pattern[..., -13:][..., 3]
    for ours, theirs in zip(adapters.output_and_mass(call, 3), dense, strict=True):
        weights = torch.randn_like(theirs)
        assert torch.allclose(ours, theirs, atol=1e-6)
        for a, b in zip(*(torch.autograd.grad((x * weights).sum(), inputs, retain_graph=True, allow_unused=True)
                          for x in (ours, theirs)), strict=True):  # fmt: skip
            assert (a is None or not a.any()) if b is None else torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_logit_far_below_all_scores_changes_nothing_and_comes_off_bit_for_bit(family):
    model = model_of(family)
    before, weights, implementation = logits(model), state(model), model.config._attn_implementation
    adapters.add_slots(model, adapters.AddedLogit(first=-1e5))
    assert torch.allclose(logits(model), before, atol=2e-5)
    adapters.remove_slots(model, implementation)
    assert equal(weights, state(model)) and torch.equal(logits(model), before)


@pytest.mark.parametrize(
    "spec", [adapters.AddedLogit(first=1.5), adapters.AddedLogit(), adapters.AddedKey(), adapters.AddedKeyValue()]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_slot_is_measured_and_takes_its_share_of_the_softmax(family, spec):
    """An oracle that knows nothing of slots: every weight of the plain call is multiplied by Z / (Z + e^slot)."""
    model = model_of(family)
    adapters.add_slots(model, spec, TOKENS)
    subject = si.load(model)
    slots = [module for name, module in model.named_modules() if name.endswith(f".{adapters.WITH_SLOTS}")]

    def share(call):
        plain, slot = replace(call, slot=None), slots[call.layer]
        if isinstance(spec, adapters.AddedLogit):
            score = 1000 * slot.logit[:, None].expand(call.q.shape[1:3])
        else:
            score = call.scale * 1000 * torch.einsum("bhid,hjd->bhi", call.q, slot.key)
        return call.slot_weights() - torch.exp(score - torch.logaddexp(plain.log_normaliser(), score))

    assert subject.run(TOKENS, reads={"share": share})["share"].abs().max() < 1e-5
    assert si.measure(subject, TOKENS).slot_importance.mean() > 0.01


@pytest.mark.parametrize("family", FAMILIES)
def test_slots_begin_as_the_means_over_texts_of_what_stands_at_the_position(family):
    model = model_of(family)
    subject = si.load(model)
    reads = {"k": lambda call: call.k, "v": lambda call: call.v, "scores": lambda call: call.scores()}
    found = subject.run(TOKENS, reads=reads)
    layers = [*zip(found["k"].unbind(1), found["v"].unbind(1), found["scores"].unbind(1), strict=True)]
    before = adapters.add_slots(model, adapters.AddedKeyValue(), TOKENS, position=2)
    slots = [module for name, module in model.named_modules() if name.endswith(f".{adapters.WITH_SLOTS}")]
    for slot, (k, v, _) in zip(slots, layers, strict=True):
        n_groups = slot.key.shape[0] // k.shape[1]
        for ours, theirs in ((1000 * slot.key, k), (slot.value, v)):
            assert torch.allclose(ours[:, 0], theirs[:, :, 2].mean(0).repeat_interleave(n_groups, 0), atol=1e-5)
    adapters.remove_slots(model, before)
    adapters.add_slots(model, adapters.AddedLogit(), TOKENS, position=2)
    slots = [module for name, module in model.named_modules() if name.endswith(f".{adapters.WITH_SLOTS}")]
    for slot, (_, _, scores) in zip(slots, layers, strict=True):
        assert torch.allclose(1000 * slot.logit, scores[:, :, 3:, 2].mean((0, 2)), atol=1e-4)


def test_watching_sees_the_mean_attention_of_later_queries_to_a_key():
    model = model_of("mistral with a window")
    subject = si.load(model)
    pattern = subject.run(TOKENS, reads={"pattern": lambda call: call.pattern()})["pattern"]
    adapters.add_slots(model, adapters.NoAddedSlots())
    with adapters.watched(2) as masses:
        logits(model)
    assert torch.allclose(torch.stack(masses).mean(), pattern[..., 3:, 2].mean(), atol=1e-6)


@pytest.mark.parametrize("family", ["llama with grouped queries", "gemma3", "gpt2", "mistral with a window"])
@pytest.mark.parametrize("cache", [None, "static"])
def test_generation_with_a_cache_is_that_without_one(family, cache):
    model = model_of(family)
    adapters.add_slots(model, adapters.AddedLogit(first=2.0))
    mask = torch.ones_like(TOKENS)
    mask[0, :4] = 0
    given = {"attention_mask": mask, "max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    cached = model.generate(TOKENS, cache_implementation=cache, **given)
    assert torch.equal(cached, model.generate(TOKENS, use_cache=False, **given))


def test_models_that_have_slots_or_no_interface_are_refused_and_stay_as_they_were():
    model = model_of("gpt-oss with sink logits")
    weights, implementation = state(model), model.config._attn_implementation
    refused(lambda: adapters.add_slots(model, adapters.AddedLogit()))
    assert equal(weights, state(model)) and model.config._attn_implementation == implementation


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("\n\n".join(f"{i} cats sat on {i * i} mats and {i % 7} dogs ran away" for i in range(400)))
    return file


@pytest.fixture(scope="module")
def base(tmp_path_factory, text):
    """A tiny Llama that attends to BOS: queries have a bias along the keys that the first dimension of BOS makes."""
    folder = tmp_path_factory.mktemp("base")
    beginning_with_bos(ByteBPE(300).make([text.read_text()])).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 31, "num_hidden_layers": 2, "num_attention_heads": 3}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=300, max_position_embeddings=64, attention_bias=True, **sizes))
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 0
        model.model.embed_tokens.weight[1] = 5 * torch.eye(24)[0]
        for block in model.model.layers:
            block.self_attn.q_proj.bias[3::8] = 3.0  # the dimensions that rotate most slowly
            block.self_attn.k_proj.weight[3::8, 0] = 1.0
    model.save_pretrained(folder)
    return folder


UNTRAINED = {"steps": 0, "slots": adapters.AddedKeyValue(), "trained": SlotsAlone()}


def recipe_of(base, text, **settings):
    few = {"steps": 6, "watch_every": 2, "save_every": 2, "lr": 1e-3, "warmup": 1}
    given = {"slots": adapters.AddedLogit(first=0.0), "trained": AllWeights()}
    return replace(mend_recipe(str(base), text, 17), **few | given | settings)


@pytest.fixture(scope="module")
def made(base, text, tmp_path_factory):
    return mended(recipe_of(base, text), tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("cache"))


def before_and_after(table):
    frame = table.frame.set_index("quantity")
    return frame["before"], frame["after"]


def test_the_table_has_a_row_for_each_quantity_with_the_intervals_of_both_states(made):
    assert [*made.table.texts()[0]] == ["quantity", "before", "after"]
    assert "[" in made.table.texts()[0]["before"] and len(made.table.frame) > 9


def test_the_attention_to_the_first_token_falls_into_the_slot(made):
    first, last = made.history[0], made.history[-1]
    assert last["alpha_1"] < first["alpha_1"] - 0.02 and last["sink_slot"] > first["sink_slot"]
    before, after = before_and_after(made.table)
    assert after["alpha_1"] < before["alpha_1"] and math.isnan(before["Sink_*"])


def test_the_mean_key_and_value_of_the_first_token_take_its_sink_over_without_training(base, text, tmp_path):
    made = mended(recipe_of(base, text, **UNTRAINED), tmp_path / "run", tmp_path)
    before, after = before_and_after(made.table)
    assert after["alpha_1"] < 0.6 * before["alpha_1"]
    assert made.recipe.skips and "after: the same texts without BOS" in made.table.note
    again = mended(recipe_of(base, text, **UNTRAINED), tmp_path / "run", tmp_path)
    assert again.history == made.history and not [*(tmp_path / "run").glob("step-*")]
    refused(lambda: recipe_of(base, text, steps=0))


def test_the_adapter_of_another_run_is_refused_and_stays(base, text, made, tmp_path):
    for n, (first, second) in enumerate(((UNTRAINED, UNTRAINED | {"seed": 3}), ({}, UNTRAINED), (UNTRAINED, {}))):
        run = tmp_path / str(n)
        mended(recipe_of(base, text, **first), run, tmp_path)
        before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
        refused(lambda second=second, run=run: mended(recipe_of(base, text, **second), run, tmp_path), str(run))
        assert before == {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}


def test_a_model_with_dropout_is_trained_without_it(text, tmp_path):
    model = model_of("gpt2")
    assert model.config.attn_pdrop
    adapters.without_dropout(model)
    assert torch.equal(model.train()(TOKENS).logits, logits(model))
    folder = tmp_path / "gpt2"
    beginning_with_bos(ByteBPE(300).make([text.read_text()])).save_pretrained(folder)
    model.resize_token_embeddings(300)
    model.save_pretrained(folder)
    assert mended(recipe_of(folder, text, steps=2), tmp_path / "run", tmp_path).history[-1]["step"] == 2


def test_where_slots_replace_bos_texts_are_read_without_it_unless_asked(base, text, made, tmp_path):
    mended_by_slots = mended(recipe_of(base, text, **UNTRAINED), tmp_path / "run", tmp_path)
    subject, plain, by_logit = (si.load(str(folder)) for folder in (mended_by_slots.folder, base, made.folder))
    with_bos = plain.tokens("cats sat on mats").tokens
    assert with_bos[0, 0] == 1 and subject.tokens("cats sat on mats").tokens.equal(with_bos[:, 1:])
    assert subject.tokens("cats sat on mats", bos="always").tokens.equal(with_bos)
    assert by_logit.tokens("cats sat on mats").tokens.equal(with_bos)
    line = si.measure(subject, ["cats sat on mats"]).protocol.line()
    assert "BOS never" in line and "slots in the place of BOS" in line
    assert "BOS tokenizer" in si.measure(by_logit, ["cats sat on mats"]).protocol.line()
    si.without_adapter(subject.model)
    assert subject.tokens("cats sat on mats").tokens.equal(with_bos)


def test_a_training_that_was_killed_ends_bit_for_bit_as_one_that_was_not(base, text, made, tmp_path):
    def killed(step, latest):
        if step == 3:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        mended(recipe_of(base, text), tmp_path / "run", tmp_path, on_step=killed)
    again = mended(recipe_of(base, text), tmp_path / "run", tmp_path)
    assert (again.folder / "mended.safetensors").read_bytes() == (made.folder / "mended.safetensors").read_bytes()
    assert again.history == made.history


def test_an_adapter_goes_on_and_comes_off_bit_for_bit(base, made):
    model = AutoModelForCausalLM.from_pretrained(base)
    before, weights, gradients = logits(model), state(model), [p.requires_grad for p in model.parameters()]
    assert not torch.allclose(logits(si.with_adapter(model, made.folder)), before, atol=1e-3)
    by_name = si.load(str(made.folder))
    assert torch.equal(logits(by_name.model), logits(model)) and len(by_name.tokens("cats sat").tokens[0]) > 1
    refused(lambda: si.with_adapter(model, made.folder))
    si.without_adapter(model)
    assert torch.equal(logits(model), before) and equal(weights, state(model))
    assert gradients == [p.requires_grad for p in model.parameters()]
    refused(lambda: si.without_adapter(model))


def test_an_adapter_of_another_model_or_a_damaged_one_is_refused(base, made, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(base)
    assert fingerprint(model) == fingerprint(deepcopy(model).bfloat16())
    with torch.no_grad():
        model.lm_head.weight[3, 3] += 1
    refused(lambda: si.with_adapter(model, made.folder), "mends other weights")
    assert not any(hasattr(module, adapters.WITH_SLOTS) for module in model.modules())
    for file in made.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "mended.safetensors").write_bytes(b"0" * 99)
    refused(lambda: si.with_adapter(AutoModelForCausalLM.from_pretrained(base), tmp_path), "is damaged")
    (tmp_path / "sha256.json").unlink()
    refused(lambda: si.with_adapter(AutoModelForCausalLM.from_pretrained(base), tmp_path), "sha256.json is damaged")


@pytest.mark.parametrize("trained", [SlotsAlone(), Lora(rank=3)])
def test_what_is_not_trained_stays(base, text, trained, tmp_path):
    if isinstance(trained, Lora):
        pytest.importorskip("peft", reason="pip install peft")
    weights = state(AutoModelForCausalLM.from_pretrained(base))
    made = mended(replace(recipe_of(base, text), trained=trained), tmp_path / "run", tmp_path)
    model = si.with_adapter(AutoModelForCausalLM.from_pretrained(base), made.folder)
    kept = {name.replace(".base_layer", ""): x for name, x in state(model).items()}
    assert all(torch.equal(kept[name], x) for name, x in weights.items())
    assert (made.folder / "mended.safetensors").stat().st_size < 40_000
    assert equal(weights, state(si.without_adapter(model)))


def test_the_command_says_in_a_line_what_came_of_it(base, text, tmp_path, monkeypatch):
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))
    line = f"mend {base} --out {tmp_path / 'out'} --text {text} --length 17 --steps 3 --set batch=2 --device cpu"
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 0, result.output
    assert "The first token is" in result.output and (tmp_path / "out" / "adapter" / "mended.json").is_file()
    record = json.loads((tmp_path / "out" / "adapter" / "mended.json").read_text())["record"]
    assert record["value"]["base"] == str(base) if "value" in record else str(base) in json.dumps(record)


def test_chunks_are_as_long_as_the_model_knows_and_longer_ones_are_refused_before_text_is_read(base, text, tmp_path):
    assert mend_recipe(str(base), text).data.length == 64
    line = f"mend {base} --out {tmp_path / 'out'} --text {tmp_path / 'absent.txt'} --length 65"
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 2 and "context of 64" in result.output and "--length 64" in result.output
