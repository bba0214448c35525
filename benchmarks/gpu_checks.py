"""What `benchmarks.gpu` checks before it measures: a GPU computes what a CPU does. Every check returns a difference."""

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.attention import sites
from sinkinterp.attention.call import AttentionCall
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.attention.slots import SinkLogit, SlotRow
from sinkinterp.backends.subject import Subject
from sinkinterp.checks import InputError
from sinkinterp.interventions.attention_layers import (
    AttendSelfOnly,
    BlindKeys,
    Dropped,
    Evict,
    KeepHeaviest,
    SpreadEvenly,
)
from sinkinterp.interventions.changes import ClampNorm, MatchedNoise, RemovePosition, ReplacePosition
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.runs.trained import trained
from sinkinterp.train import checkpoint
from sinkinterp.train.recipe import Recipe

Check = Callable[[], float]
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.05}  # of outputs, log-sum-exps, and masses over T, all of order 1
EDITS: tuple[iv.Edit, ...] = (
    iv.SwapPositions(0, 4), ReplacePosition(0, 4), RemovePosition([0]), iv.ZeroKeyBias(),
    iv.ZeroQueryBias(), iv.ZeroValueBias(), BlindKeys(range(4)), iv.PatchNormalization(Sigmoid()),
    iv.Temperature(2.0), iv.BiasColumn(-3.0), iv.RemoveColumn(), iv.RemoveColumn(SpreadEvenly()),
    iv.RemoveColumn(Dropped()), AttendSelfOnly(positions=[5]), Evict(4, 1), KeepHeaviest(4, 2),
    iv.RemoveKeySlot(),
    iv.ZeroKeySlot(), iv.AddSinkLogit(1.0), iv.Change(sites.TOKEN_EMBEDDING, iv.Zero(), positions=[0]),
    iv.Change(sites.POSITION_EMBEDDING, iv.Scale(0.5)), iv.ChangeResidual(ClampNorm(0.1)),
    iv.Change(sites.ATTENTION_INPUT, iv.Scale(0.5)), iv.Change(sites.NEURONS, iv.Scale(0.5)),
    iv.ChangeMLP(iv.SetTo(0.5), layers=[1]), iv.Change(sites.QUERIES, iv.Scale(0.5)), iv.ChangeKeys(iv.SwapWith(0, 5)),
    iv.ChangeValues(iv.MeanOfOthers(), positions=[0]), iv.ChangeOutputs(MatchedNoise(), positions=[2]),
    iv.Change(sites.PATTERN, iv.Zero(), dims=[0]),
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Of the attention calls that are compared: tokens, and dimensions of a head."""

    length: int = 259
    d_head: int = 64


def kernels(device: str, size: Size) -> Iterator[tuple[str, float, Check]]:
    """What is compared, how far it may be off, and the check: calls of every kind, and whether a kernel takes them."""
    for dtype, most in TOLERANCES.items():
        for name, (call, is_fused) in calls(size, dtype).items():
            yield f"{name}, {str(dtype)[6:]}", most, partial(kernel_difference, call, device, is_fused)


def calls(size: Size, dtype: torch.dtype) -> Mapping[str, tuple[AttentionCall, bool]]:
    """Attention calls on the CPU by name, and whether a kernel takes each."""
    draw = torch.Generator().manual_seed(0)
    n, d = size.length, size.d_head
    q, k, v = (torch.randn(2, heads, n, d, generator=draw).to(dtype) for heads in (6, 3, 3))
    call = AttentionCall(0, q, k, v, d**-0.5)
    index = torch.arange(n)
    distance = (index[:, None] - index).clamp(min=0)[None, None]
    window = ((distance < n // 3) & (index[:, None] >= index))[:, :]
    row = SlotRow(*(torch.randn(6, 1, d, generator=draw).to(dtype).float() for _ in range(2)))
    slopes = 2.0 ** -torch.arange(1, 7)[:, None, None]
    return {
        "causal, grouped queries": (call, True),
        "chunk after a cache": (replace(call, q=q[:, :, -n // 4 :]), True),
        "window": (replace(call, mask=window), True),
        "padding": (replace(call, mask=window & (index > 3)), True),
        "slot with a key": (replace(call, slot=row), True),
        "sink logit": (replace(call, slot=SinkLogit(torch.ones(6))), True),
        "ALiBi": (replace(call, bias=-slopes * distance), dtype is torch.float32),
        "soft cap": (replace(call, softcap=5.0), False),
        "soft cap, ALiBi, window": (replace(call, softcap=5.0, bias=-slopes * distance, mask=window), False),
    }


def kernel_difference(call: AttentionCall, device: str, is_fused: bool) -> float:
    """The largest difference from fp64 on the CPU. Raises RuntimeError where no kernel takes a call that one should."""
    there = _moved(call, lambda tensor: tensor.to(device))
    if is_fused and not there.is_fused:
        raise RuntimeError("no kernel takes it")
    exact = _moved(call, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
    vars(exact)["_fused"] = None  # its log-sum-exp is that of dense scores
    n_keys = call.k.shape[2]
    pattern = exact.pattern()
    pairs = (
        (there.output(), exact.mix(pattern)),
        (there.log_normaliser().nan_to_num(neginf=0), exact.log_normaliser().nan_to_num(neginf=0)),
        (there.column_mass() / n_keys, pattern[..., -n_keys:].sum(2) / n_keys),
    )
    return max((got.cpu().double() - want).abs().max().item() for got, want in pairs)


def _moved(call: AttentionCall, move: Callable[[Tensor], Tensor]) -> AttentionCall:
    mask, bias = (None if t is None else move(t) for t in (call.mask, call.bias))
    slot = None if call.slot is None else type(call.slot)(*map(move, vars(call.slot).values()))
    return replace(call, q=move(call.q), k=move(call.k), v=move(call.v), mask=mask, bias=bias, slot=slot)


def intervention_difference(device: str) -> float:
    """The largest difference between logits on the device and on the CPU, over every intervention, in fp32."""
    models = [model.eval() for model in tiny_models()]
    here, there = ([si.load(copy.deepcopy(model).to(place)) for model in models] for place in ("cpu", device))
    tokens = torch.randint(61, (3, 13), generator=torch.Generator().manual_seed(0))
    worst = 0.0
    for edit in EDITS:
        pairs = [_both(edit, tokens, *subjects) for subjects in zip(here, there, strict=True)]
        differences = [pair for pair in pairs if pair is not None]
        if not differences:
            raise RuntimeError(f"no model takes {edit}")
        worst = max(worst, *differences)
    return worst


def _both(edit: iv.Edit, tokens: Tensor, here: Subject, there: Subject) -> float | None:
    """The difference of logits; None where the model has nothing that the edit changes."""
    try:
        want = here.run(tokens, edits=[edit]).logits
    except InputError:
        return None
    return (there.run(tokens, edits=[edit]).logits.cpu() - want).abs().max().item()


def tiny_models() -> Iterator[PreTrainedModel]:
    """One with learned positions, one with rotary positions and biases, one with a slot; vocabularies of 61 or more."""
    torch.manual_seed(0)
    yield GPT2LMHeadModel(
        GPT2Config(vocab_size=61, n_positions=32, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    )
    yield Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=61, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, initializer_range=0.2,
        )
    )  # fmt: skip
    yield build(VARIANTS["k_bias"])


def resume_difference(device: str, steps: int = 12) -> float:
    """Difference in validation loss, nats, between a run that is stopped half way and goes on, and one that is not."""
    recipe = Recipe(model=VARIANTS["k_bias"], steps=steps, batch=8, warmup=2, watch_every=steps, save_every=steps // 4)

    def stop(step: int, latest: dict[str, float]) -> None:
        if step == steps // 2:
            raise KeyboardInterrupt

    losses = []
    for on_step in (stop, None):
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            if on_step is not None:
                with suppress(KeyboardInterrupt):
                    trained(recipe, Path(folder), on_step, folder=run, device=device)
            trained(recipe, Path(folder), folder=run, device=device)
            losses.append(checkpoint.history_of(checkpoint.folder_of(run, steps))[-1]["valid_loss"])
    return abs(losses[0] - losses[1])
