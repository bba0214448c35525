"""Models whose layers round numbers: those that keep texts apart are read, the others are refused."""

import pytest
import torch
from backends.own_modules import NanoGPT
from backends.zoo import model_of, tokens_of
from refusals import refused
from torch.ao.quantization import default_dynamic_qconfig, quantize_dynamic

import sinkinterp as si
from sinkinterp.backends.load import BACKENDS
from sinkinterp.measurement.parity import dense_patterns

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
]


def rounded(model, part="", dtype=torch.qint8):
    """The model with its linear layers rounded, those whose names hold `part`."""
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and part in name]
    return quantize_dynamic(model, dict.fromkeys(linear, default_dynamic_qconfig) if part else None, dtype=dtype)


def check_mixes_texts(model):
    """One scale rounds all texts of a batch: the first text's logits change with the second."""
    tokens = tokens_of()
    with torch.no_grad():
        alone, beside = model(tokens[:1]), model(tokens[:2])
    alone, beside = (x if isinstance(x, torch.Tensor) else x.logits for x in (alone, beside))
    assert (alone[0] - beside[0]).abs().max() > 1e-4 * alone.abs().max()


NAMES = ("gpt2", "qwen2", "gemma2 with softcap", "gpt-oss with sink logits")
ROUNDED = {
    **{name: lambda name=name: si.load(rounded(model_of(name))) for name in NAMES},
    **{part: lambda part=part: si.load(rounded(model_of("llama"), part)) for part in ("k_proj", "mlp", "lm_head")},
    **{name: lambda name=name: si.load(rounded(model_of("llama")), backend=name) for name in BACKENDS},
    "a module of one's own": lambda: si.load(rounded(NanoGPT().eval())),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_a_model_that_rounds_all_texts_by_one_scale_is_refused(name):
    if name in NAMES:
        check_mixes_texts(rounded(model_of(name)))
    refused(ROUNDED[name])


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2"])
def test_weights_alone_may_be_rounded(name):
    model = rounded(model_of(name), dtype=torch.float16)
    assert isinstance(model.lm_head.weight(), torch.Tensor)  # packed: no parameter
    right = dense_patterns(model, tokens_of())
    seen = torch.arange(right.shape[-1], 0, -1)
    importance = si.measure(model, tokens_of(), progress=False).importance
    torch.testing.assert_close(importance, right.sum(-2) / seen, rtol=0, atol=1e-5)
