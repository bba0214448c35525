"""What is read and edited as a feed-forward update is what the block adds to the residual stream."""

from itertools import product

import pytest
import torch
import transformers
from backends import test_own_attention as own
from backends.zoo import SIZES, peaked, tokens_of
from refusals import refused

from sinkinterp.attention.sites import MLP, NEURONS, RESIDUAL
from sinkinterp.backends.load import BACKENDS, load
from sinkinterp.checks import InputError
from sinkinterp.interventions import ChangeMLP, Scale, SetTo

CONFIGS = {
    "glm4": transformers.Glm4Config(**SIZES, num_key_value_heads=2, head_dim=12),
    "olmo2": transformers.Olmo2Config(**SIZES, num_key_value_heads=2),
    "granite": transformers.GraniteConfig(**SIZES, num_key_value_heads=2, residual_multiplier=0.22),
    "granite-moe with a shared layer": transformers.GraniteMoeSharedConfig(
        **SIZES, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=16
    ),
    "cohere": transformers.CohereConfig(**SIZES, num_key_value_heads=2),
    "falcon-h1, a recurrence beside attention": transformers.FalconH1Config(
        **SIZES, num_key_value_heads=2, head_dim=12, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_n_groups=1,
        mamba_d_state=8, mamba_chunk_size=4,  # not 256, of which a short text fills little
    ),
}  # fmt: skip


OWN = [name for name in own.NAMES if name not in (*own.OTHER_NAMES, "openai-gpt")]  # a norm follows the sum in the last


def model_of(name: str):
    if name in OWN:
        return own.model_of(name)
    torch.manual_seed(0)
    return peaked(transformers.AutoModelForCausalLM.from_config(CONFIGS[name]).eval())


def reads(subject, *edits):
    entries = {"residual": RESIDUAL.read(lambda x: x), "update": MLP.read(lambda x: x)}
    trace = subject.run(tokens_of(), reads=entries, edits=edits)
    return trace["residual"], trace["update"]


def test_neurons_of_experts_are_not_those_of_the_layer_that_they_share():
    subject = load(model_of("granite-moe with a shared layer"))
    refused(lambda: subject.run(tokens_of(), reads={"x": NEURONS.read(lambda x: x)}), NEURONS.label)


@pytest.mark.parametrize(("name", "backend"), [*product(CONFIGS, BACKENDS), *product(OWN, ["huggingface"])])
def test_the_update_that_is_set_is_what_the_residual_gains(name, backend):
    try:
        subject = load(model_of(name), backend=backend)
    except InputError as error:
        assert backend == "transformer_lens"
        pytest.skip(str(error))
    stream, updates = reads(subject)
    without, _ = reads(subject, ChangeMLP(SetTo(0.0), layers=[1]))
    torch.testing.assert_close(stream[:, 2] - without[:, 2], updates[:, 1], rtol=1e-3, atol=1e-5)
    larger, _ = reads(subject, ChangeMLP(Scale(100.0), layers=[1]))
    torch.testing.assert_close(larger[:, 2] - stream[:, 2], 99 * updates[:, 1], rtol=1e-3, atol=1e-4)
