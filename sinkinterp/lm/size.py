"""How large a model is, before it is made."""

import torch

from ..checks import check_memory
from .block import SinkBlock
from .config import LMSpec, SinkConfig


def parameter_count(spec: LMSpec) -> int:
    """Roughly how many parameters a model has; 2**62 for tensors beyond 64 bits."""
    try:
        with torch.device("meta"):
            block = SinkBlock(SinkConfig(spec=spec.to_dict()), 0)
    except RuntimeError:
        return 2**62
    return 2 * spec.vocab * spec.d_model + spec.n_layers * sum(weight.numel() for weight in block.parameters())


def check_size(spec: LMSpec) -> None:
    """Raises InputError, with the estimate, for a model whose weights in fp32 exceed the memory of this machine."""
    count = parameter_count(spec)
    what = f"about {count:.2g} parameters ({spec.n_layers} layers, d_model {spec.d_model}, {spec.vocab} symbols)"
    check_memory(4 * count, what, "lower model.n_layers, model.d_model, model.vocab or model.ffn.width")
