"""A model of more layers than its device holds, and texts that are long."""

from copy import deepcopy

import pytest
import torch
from accelerate import cpu_offload
from backends.zoo import CONFIGS, VOCAB, peaked, tokens_of
from memory import Held
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from sinkinterp.attention.sites import CALL, MLP, RESIDUAL
from sinkinterp.backends.load import load
from sinkinterp.interventions import AddSinkLogit, ChangeMLP, ChangeOutputs, ChangeResidual, Scale, Zero
from sinkinterp.interventions.attention_layers import BlindKeys
from sinkinterp.measurement.measure import measure

LAYERS, HELD = 5, 2  # the device holds so many of the layers; the others stay on disk


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A whole model, and the same one, most of whose layers lie on disk."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("large")
    config = AutoConfig.for_model(**CONFIGS["llama with biases"].to_dict() | {"num_hidden_layers": LAYERS})
    model = peaked(AutoModelForCausalLM.from_config(config).eval())
    model.save_pretrained(folder)
    size = sum(4 * p.numel() for part in (model.model.embed_tokens, model.lm_head) for p in part.parameters())
    size += HELD * sum(4 * p.numel() for p in model.model.layers[0].parameters())
    room = {"device_map": "auto", "max_memory": {"cpu": size}, "offload_folder": folder / "disk"}
    spread = AutoModelForCausalLM.from_pretrained(folder, **room)
    places = [spread.hf_device_map[f"model.layers.{i}"] for i in range(LAYERS)]
    assert 0 < places.count("cpu") <= HELD and places.count("disk") >= LAYERS - HELD
    return load(model), load(spread)


@pytest.mark.parametrize("spread", ["on disk", "in memory", {"": "cpu"}, "auto"], ids=str)
def test_every_layer_of_a_model_that_its_device_cannot_hold_is_read_as_in_the_whole_one(both, spread, tmp_path):
    subject = both[1]
    if spread == "in memory":  # weights come when their layer runs
        subject = load(cpu_offload(deepcopy(both[0].model), torch.device("cpu")))
    elif spread != "on disk":
        both[0].model.save_pretrained(tmp_path)
        subject = load(tmp_path, device_map=spread)
    reads = {
        "residual": RESIDUAL.read(torch.clone),
        "pattern": CALL.read(lambda call: call.pattern()),
        "mlp": MLP.read(torch.clone),
    }
    whole, answers = (each.run(tokens_of(), reads=reads).answers for each in (both[0], subject))
    torch.testing.assert_close(answers, whole, rtol=1e-5, atol=1e-6)
    assert whole["pattern"].shape[1] == LAYERS


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize(
    "edit",
    [
        lambda i: ChangeOutputs(Zero(), heads=[(i, 1)]), lambda i: ChangeResidual(Scale(0.3), layers=[i]),
        lambda i: ChangeMLP(Scale(30.0), layers=[i]), lambda i: BlindKeys(layers=[i], dims=range(48)),
        lambda i: AddSinkLogit(3.0, heads=[(i, 0)]),
    ],
    ids=["head", "residual", "mlp", "weights", "slot"],
)  # fmt: skip
def test_an_edit_of_any_layer_has_the_effect_that_it_has_in_the_whole_model(both, edit, layer):
    plain = both[0].run(tokens_of()).logits
    whole, spread = (subject.run(tokens_of(), edits=[edit(layer)]).logits for subject in both)
    torch.testing.assert_close(spread, whole, rtol=1e-5, atol=1e-5)
    assert (whole - plain).abs().max() > 2e-5


@pytest.mark.parametrize("positions", [(0,), None], ids=["the first position", "all positions"])
def test_memory_of_measuring_is_linear_in_length(positions):
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=4096, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    subject, peaks = load(AutoModelForCausalLM.from_config(config).eval()), []
    for n in (1031, 2062):
        with Held() as held:
            measure(subject, torch.arange(n)[None] % VOCAB, positions=positions, progress=False)
        peaks.append(held.peak)
    assert peaks[1] < 2.1 * peaks[0]
