"""SinkCallback: the sinks of a fixed batch, measured while a model trains, in transformers' Trainer or another loop."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from inspect import signature
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback

from ..attention import CALL, RESIDUAL, AttentionCall
from ..backends.anatomy import removed_after
from ..backends.attached import inside_compiled, used_alone
from ..backends.hooks import BASES, OURS, attention_set_to
from ..backends.load import load
from ..backends.subject import Subject
from ..checks import InputError, accepting, finite_number, instance_of, whole_number
from ..data.tokens import TokenSet, TokensLike, random_tokens, token_set_of
from ..lm.attention import GateMap
from ..metrics import residuals
from ..metrics.importance import above_controls, check_epsilon, control_positions, pattern, sink_logits
from ..metrics.metric import Metric
from ..report.readings import Readings
from ..table import Table
from .measure import answers_of, inputs_of, measure

Numbers = dict[str, float]
PEAK = Metric("peak", RESIDUAL, residuals.peak)
SINK_LOGITS = Metric("sink_logits", CALL, sink_logits)
_SHARDED = ("full_tensor", "ds_id", "_is_flat_param")  # what only weights have that FSDP or DeepSpeed divided


def sinks_of(report: Readings, epsilon: float = 0.3) -> Numbers:
    """alpha_1, Sink_1 and Sink_*, 0 without a slot: means over sequences, layers and heads."""
    alpha, slot = report.alpha().mean().item(), report.slot_rate(epsilon)
    return {"alpha_1": alpha, "sink_1": report.sink_rate(0, epsilon).mean, "sink_slot": slot.mean if slot else 0.0}


def emergence_of(subject: Subject, report: Readings) -> Numbers:
    """Whether heads look at the first token more than chance explains, and whether any head is an induction head.

    above_p99: the share of heads above the 99th percentile of the report's other positions; induction: of the
    strongest head, on random tokens that are read twice.
    """
    scores = induction_scores(subject, length=min(64, report.protocol.length)).mean(0)
    return {
        "above_p99": above_controls(report.importance - report.null).nanmean().item(),
        "induction": scores.max().item(),
    }


def induction_scores(
    subject: Subject, sequences: int = 8, length: int = 64, seed: int = 0
) -> Float[Tensor, "sequence layer head"]:
    """The attention of each token of a second copy to the token after its first one, mean over the copy (2209.11895).

    The text is length // 2 random tokens, read twice. `uniform_induction` is the null.
    """
    half = random_tokens(subject.shape.vocab, length // 2, sequences, seed).tokens
    (scores,) = answers_of(subject, torch.cat((half, half), 1), {"induction": CALL.read(induction)}, ())
    return scores


def induction(call: AttentionCall) -> Float[Tensor, "batch head"]:
    """The score of every head in a text that is two copies of one."""
    weights = pattern(call)[..., -call.k.shape[2] :]
    half = weights.shape[-1] // 2
    return weights.diagonal(1 - half, -2, -1)[..., 1:].float().mean(-1)


def uniform_induction(length: int) -> float:
    """The score of uniform attention over all tokens so far."""
    half = length // 2
    return sum(1 / (query + 1) for query in range(half, 2 * half)) / half


class SinkCallback(TrainerCallback):
    """Measures the sinks of a fixed batch every `every` steps of a training, without changing the training.

    In transformers' Trainer::

        trainer.add_callback(si.SinkCallback(tokens, log=trainer.log))

    In any other loop, in its first process::

        watch = si.SinkCallback(tokens)
        watch(model, step)  # after each step: the numbers, or None where none are due

    The numbers are alpha_1 and alpha_1_uniform (what uniform attention would give), sink_1 and sink_slot at `epsilon`,
    above_p99 (the share of heads above the 99th percentile of other positions), induction (of the strongest head),
    norm_ratio (||h_1|| over the mean of the other tokens, of the block where it is largest), largest_entry (of the
    residuals of all blocks) and, where the model has them, the means of sink_logit and of gate (of models of ours).

    tokens: what `measure` takes, by default its texts; text is read with the Trainer's tokenizer, or with
    `tokenizer=`. Keep it small.
    name: of the batch, where several are watched in one training; the numbers are then called name/alpha_1 and so on.
    most: the largest share of the time that measurements take. One that would take more is left out, so that in a very
    fast training several times `every` steps lie between two. 1 leaves none out.
    log: a function that is given the numbers, such as `trainer.log`, which hands them to tensorboard, wandb and the
    history of the Trainer. Without it they go to that history alone.
    loading: what else `load` takes, for modules of your own.

    Weights, random states, modes, gradients, hooks and the attention implementation are afterwards as they were. So a
    run with the callback ends bit for bit as one without it. The model is measured in its own dtype, outside the
    autocast of accelerate. A Trainer that resumes from a checkpoint goes on with the history there. In other loops
    `state_dict` holds the history, as accelerate's `register_for_checkpointing` expects. Raises InputError where
    `load` and `measure` do, for what are not tokens, and for weights that are divided among processes.
    """

    def __init__(
        self,
        tokens: TokensLike | Any = None,
        every: int = 100,
        *,
        name: str = "",
        epsilon: float = 0.3,
        most: float = 0.02,
        log: Callable[[Numbers], Any] | None = None,
        **loading: Any,
    ) -> None:
        if absent := loading.keys() - signature(load).parameters.keys():
            raise TypeError(f"SinkCallback() got an unexpected keyword argument {min(absent)!r}")
        self.every = whole_number(every, "every, a number of steps,", 1)
        instance_of(name, str, "name is a text")
        finite_number(most, "most, a share of the time,", above=0, most=1)
        check_epsilon(epsilon)
        if log is not None:
            accepting(log, "log, such as trainer.log,", {})
        if not isinstance(tokens, str | Path | None):  # which are read when the training begins
            token_set_of(tokens, lambda texts: TokenSet.of_rows([[0, 0]]))
        self.tokens, self.epsilon, self.most, self.log, self.loading = tokens, epsilon, most, log, loading
        self.history: list[Numbers] = []
        self._prefix = f"{name}/" if name else ""
        self._model: Any = None
        self._inputs: tuple[Subject, TokenSet] | None = None
        self._cost = self._ended = 0.0

    def __call__(self, model: Any, step: int) -> Numbers | None:
        """As `step`."""
        return self.step(model, step)

    @property
    def table(self) -> Table:
        """The history, a row for each measurement."""
        columns = dict.fromkeys(number for row in self.history for number in row)
        return Table.of(
            "Sinks during training", f"epsilon={self.epsilon}", tuple(columns | row for row in self.history)
        )

    def step(self, model: Any, step: int) -> Numbers | None:
        """The numbers after this step, counted from 1, which also join `history`; None where none are due.

        `model` is what the loop trains, also inside torch.compile or DistributedDataParallel, or its subject.
        """
        if whole_number(step, "step", 0) % self.every:
            return None
        model = _inside(model)
        if self._inputs is None or model is not self._model:
            self._begin(model)
        elif self.most < 1 and (time.perf_counter() - self._ended) * self.most < self._cost:
            return None
        numbers = self._timed()
        self.history.append({"step": step, **numbers})
        return numbers

    def _begin(self, model: Any) -> None:
        """Loads the model, and measures it once: a process's first pass takes much longer than the others."""
        module = _module_of(model)
        if module is not None and any(hasattr(weight, mark) for weight in module.parameters() for mark in _SHARDED):
            raise InputError("these weights are divided among processes; measure the checkpoints: si.measure(FOLDER)")
        with _as_before(module):
            subject = model if isinstance(model, Subject) else load(model, **self.loading)
            self._inputs = inputs_of(subject, self.tokens)
        self._model = model
        self._timed()

    def _timed(self) -> Numbers:
        """The numbers now. It notes what they cost."""
        assert self._inputs is not None
        if self._inputs[0].device.type != "cpu":
            torch.accelerator.synchronize()  # steps that are still queued are not our time
        start = time.perf_counter()
        numbers = self._numbers(*self._inputs)
        self._ended = time.perf_counter()
        self._cost = self._ended - start
        return numbers

    def _numbers(self, subject: Subject, token_set: TokenSet) -> Numbers:
        module = _module_of(subject)
        with _as_before(module), _gates_of(module) as gates:
            at = control_positions(token_set.shortest)
            report = measure(subject, token_set, positions=at, instruments=[(PEAK, SINK_LOGITS)], progress=False)
        with _as_before(module):
            emergence = emergence_of(subject, report)
        logits = report.extra(SINK_LOGITS)
        numbers = {
            **sinks_of(report, self.epsilon),
            **emergence,
            "alpha_1_uniform": report.null_alpha().mean().item(),
            "norm_ratio": report.residual_ratio().mean(0).max().item(),
            "largest_entry": report.extra(PEAK).max().item(),
            **({} if logits.isnan().all() else {"sink_logit": logits.nanmean().item()}),
            **({"gate": sum(total.item() for total, _ in gates) / sum(n for _, n in gates)} if gates else {}),
        }
        return {self._prefix + number: value for number, value in numbers.items()}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint of a loop keeps: the history."""
        return {"history": self.history}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on with the history of a checkpoint."""
        what = "a state is what state_dict returns, {'history': [...]}"
        history = instance_of(instance_of(state, Mapping, what).get("history"), list, what)
        self.history = [instance_of(row, Mapping, what) for row in history]

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.log is None and args.report_to:
            call = "trainer.add_callback(si.SinkCallback(tokens, log=trainer.log))"
            raise InputError(f"to reach {', '.join(args.report_to)}, the callback needs the Trainer's log: {call}")
        tokenizer = kwargs.get("processing_class")
        if isinstance(tokenizer, PreTrainedTokenizerBase):
            self.loading.setdefault("tokenizer", tokenizer)
        before = state.log_history if state.global_step else []
        self.history = [row for row in before if f"{self._prefix}alpha_1" in row]
        steps = [row["step"] for row in self.history]
        if len(set(steps)) < len(steps):
            raise InputError("two SinkCallbacks wrote this history; give each a name: SinkCallback(tokens, name=...)")
        if state.global_step == 0:
            self.on_step_end(args, state, control, **kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        numbers = self.step(kwargs["model"], state.global_step) if state.is_world_process_zero else None
        if numbers is None:
            return
        if self.log is None:
            state.log_history.append({**numbers, "epoch": state.epoch, "step": state.global_step})
        else:
            self.log(numbers)


def _inside(model: Any) -> Any:
    """The module inside what torch.compile and distributed training wrap around it."""
    inner = inside_compiled(model)
    return _inside(inner.module) if isinstance(inner, DataParallel | DistributedDataParallel) else inner


def _module_of(model: Any) -> nn.Module | None:
    """The module itself, or that of a subject; None for a model that is not here."""
    module = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    return module if isinstance(module, nn.Module) else None


@contextmanager
def _as_before(module: nn.Module | None) -> Iterator[None]:
    """In the block, a model may be loaded and measured. Afterwards it and the random states are as they were."""
    with ExitStack() as stack:
        if module is not None:
            stack.enter_context(used_alone(module))
        gpus = {weight.device for weight in ([] if module is None else module.parameters()) if weight.is_cuda}
        stack.enter_context(torch.random.fork_rng(gpus))
        if module is not None and {"forward", "_original_forward"} <= vars(module).keys():  # accelerate's autocast
            stack.callback(setattr, module, "forward", vars(module).pop("forward"))
        if isinstance(module, PreTrainedModel) and module.config._attn_implementation.removeprefix(OURS) not in BASES:
            stack.enter_context(attention_set_to(module, "sdpa"))
        yield


def _gates_of(module: nn.Module | None) -> AbstractContextManager[list[tuple[Tensor, int]]]:
    """In the block, every pass adds the sum of each gate of the model to the list, and of how many values it is."""
    sums: list[tuple[Tensor, int]] = []
    thread = get_ident()
    gates = [part for part in ([] if module is None else module.modules()) if isinstance(part, GateMap)]

    def see(gate: nn.Module, args: Any, values: Tensor) -> None:
        if get_ident() == thread:  # else another one runs the model
            sums.append((values.sum(dtype=torch.float32), values.numel()))

    return removed_after([gate.register_forward_hook(see) for gate in gates], sums)
