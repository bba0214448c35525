"""The weights of a block's linear maps, those of experts and of GPT-2's transposed layers among them."""

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def linear_maps(block: nn.Module) -> Iterator[Float[Tensor, "... row column"]]:
    """Views of the weights: a row for each output, a column for each input; of experts a stack of such matrices.

    Weights that are integers, as in a model that was quantised when it was loaded, are left out, and so are the routers
    of experts that transformers does not build as linear layers.
    """
    for module in block.modules():
        if isinstance(module, nn.Linear):
            found = [module.weight]
        elif isinstance(module, Conv1D):
            found = [module.weight.mT]
        else:
            own = () if isinstance(module, _CONVOLUTIONS) else module.parameters(recurse=False)
            is_transposed = getattr(module, "is_transposed", False)  # transformers' experts
            found = [weight.mT if is_transposed else weight for weight in own if weight.ndim == 3]
        yield from (weight for weight in found if weight.is_floating_point())
