"""Models whose layers round numbers: those that keep texts apart are read, the others are refused with a fix."""

import pytest
import torch
from backends.own_modules import NanoGPT
from backends.zoo import model_of, tokens_of
from torch.ao.quantization import default_dynamic_qconfig, quantize_dynamic

import sinkinterp as si
from sinkinterp.backends.load import BACKENDS
from sinkinterp.errors import InputError
from sinkinterp.measurement.parity import dense_patterns

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
]
MIXES = "change with the texts beside a text, .* as after quantize_dynamic; give the model before that, or one of which"


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


@pytest.mark.parametrize("name", ["gpt2", "qwen2", "gemma2 with softcap", "gpt-oss with sink logits"])
def test_a_model_that_rounds_all_texts_by_one_scale_is_refused_with_the_fix(name):
    model = rounded(model_of(name))
    check_mixes_texts(model)
    with pytest.raises(InputError, match=MIXES):
        si.measure(model, tokens_of())


@pytest.mark.parametrize("part", ["k_proj", "mlp", "lm_head"])
def test_one_rounded_part_is_refused_as_all_are(part):
    with pytest.raises(InputError, match=MIXES):
        si.load(rounded(model_of("llama"), part))


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_refuses_a_rounded_model(backend):
    fix = "use the Hugging Face backend" if backend == "transformer_lens" else MIXES
    with pytest.raises(InputError, match=fix):
        si.load(rounded(model_of("llama")), backend=backend)


def test_an_own_module_is_refused_as_well():
    torch.manual_seed(0)
    model = rounded(NanoGPT().eval())
    with pytest.raises(InputError, match=MIXES):
        si.load(model)


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2"])
def test_weights_alone_may_be_rounded(name):
    model = rounded(model_of(name), dtype=torch.float16)
    assert isinstance(model.lm_head.weight(), torch.Tensor)  # packed: no parameter
    right = dense_patterns(model, tokens_of())
    seen = torch.arange(right.shape[-1], 0, -1)
    importance = si.measure(model, tokens_of(), progress=False).importance
    torch.testing.assert_close(importance, right.sum(-2) / seen, rtol=0, atol=1e-5)
