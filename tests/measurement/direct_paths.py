"""What goes straight from a head to the logits, by following what plain PyTorch adds to the residual stream."""

from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sinkinterp.attention.sites import Edit
from sinkinterp.backends.subject import Trace
from sinkinterp.interventions import ChangeOutputs
from sinkinterp.interventions.changes import Put
from sinkinterp.measurement.patching import activations

_ADD = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__iadd__, Tensor.__radd__}
_SAME = {Tensor.view, Tensor.reshape, torch.reshape, Tensor.to, Tensor.float, Tensor.contiguous, Tensor.clone}
_SAME |= {torch.nn.functional.dropout}


class Stream(TorchFunctionMode):
    """Keeps every update that is added to the stream, or gives them back: `kept`, by block and in their order.

    sender: the block in which the first update that differs passes; None keeps them.
    """

    def __init__(self, kept: dict[int, list[Tensor]], sender: int | None = None) -> None:
        super().__init__()
        self.kept, self.sender, self.block = kept, sender, -1
        self.alive: list[Tensor] = []  # so that no other tensor takes the same address

    def enter(self, block: int, module: nn.Module, args: tuple, kwargs: dict) -> None:
        self.block, self.n_added, self.has_passed = block, 0, block != self.sender
        self.ids = {id(args[0] if args else kwargs["hidden_states"])}

    def leave(self, module: nn.Module, args: tuple, output: Tensor | tuple) -> None:
        x = output if isinstance(output, Tensor) else output[0]
        assert id(x) in self.ids, f"block {self.block} returns no sum"
        self.block = -1

    def _update(self, x: Tensor) -> Tensor:
        """What is added: `x`, or what is kept in its place."""
        kept, place = self.kept.setdefault(self.block, []), self.n_added
        self.n_added += 1
        if self.sender is None:
            kept.append(x.clone())
        if self.sender is None or self.block < self.sender:
            return x
        differs = not torch.allclose(x, kept[place], rtol=1e-5, atol=1e-6)
        if not self.has_passed and differs:
            self.has_passed = True
            return x
        return kept[place]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.block < 0 or not args or not isinstance(args[0], Tensor):
            return func(*args, **kwargs)
        streams = [isinstance(x, Tensor) and id(x) in self.ids for x in args[:2]]
        if func in _ADD and len(args) > 1 and any(streams):
            stream, update = args[:2] if streams[0] else args[1::-1]
            with torch._C.DisableTorchFunction():
                out = stream + self._update(update) if isinstance(update, Tensor) else stream + update
        elif func in _SAME and streams[0]:
            out = func(*args, **kwargs)
        else:
            return func(*args, **kwargs)
        self.alive.append(out)
        self.ids.add(id(out))
        return out


def direct_logits(subject, clean, corrupted, layer: int, head: int) -> Tensor:
    """The logits of the corrupted run in which one head of the clean run goes straight to the logits."""
    z = activations(ChangeOutputs(), subject, corrupted)[layer].clone()
    z[:, head] = activations(ChangeOutputs(), subject, clean)[layer][:, head]
    return direct_run(subject, corrupted, layer, ChangeOutputs(Put({layer: z}), layers=[layer])).logits


def direct_run(subject, corrupted, layer: int, sent: Edit, **reads) -> Trace:
    """The corrupted run in which what an edit changes in the update of a block goes straight to all later blocks."""
    kept: dict[int, list[Tensor]] = {}

    def run(stream: Stream, *edits) -> Trace:
        with ExitStack() as stack:
            for i, block in enumerate(subject.modules.blocks):
                enter = lambda m, args, kwargs, i=i: stream.enter(i, m, args, kwargs)  # noqa: E731
                stack.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
                stack.callback(block.register_forward_hook(stream.leave).remove)
            stack.enter_context(stream)
            return subject.run(corrupted, edits=edits, **reads)

    run(Stream(kept))
    return run(Stream(kept, layer), sent)
