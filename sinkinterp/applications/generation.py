"""Finds the sinks while a model writes: on the first token, on another one, or on several."""

from functools import partial
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention.call import AttentionCall
from ..backends.exclusive import exclusive
from ..backends.hooks import eval_mode
from ..backends.huggingface import HuggingFaceSubject
from ..checks import LARGEST, InputError, check_memory, whole_number
from ..data.tokens import Tokens
from ..measurement.inputs import dtype_of, passes, reads_inputs
from ..metrics.bootstrap import SHARES, SIZES, intervals, mean_cells, rate_cells
from ..metrics.importance import check_epsilon
from ..plots.theme import sweep_figure
from ..table import NULL, Cell, Table

GENERATED, ALPHA = "generated tokens", "alpha_1"
STAYS, MOVED, SINKS = "sink on the first", "sink elsewhere", "sinks a head"
PARTS = 4  # of the generated tokens


@reads_inputs
def generated(subject: HuggingFaceSubject, prompts: Tokens, count: int, seed: int = 0) -> Int[Tensor, "sequence _"]:
    """Prompts and `count` tokens that the model writes after each, sampled at temperature 1; no text ends before."""
    start, limit = prompts.shape[1], subject.shape.n_ctx
    subject.check_ids(prompts)
    count = whole_number(count, "tokens to generate", 1, None if limit is None else limit - start)
    seed = whole_number(seed, "seed", 0, LARGEST)
    check_memory(8 * len(prompts) * (start + count), f"{count:,} tokens after each prompt", "generate fewer")
    if subject.libraries or not hasattr(subject.model, "generate"):
        raise InputError(f"{subject.name} writes no text here; give a model of transformers, backend='huggingface'")
    with torch.random.fork_rng(), exclusive(subject.model), eval_mode(subject.model):
        torch.manual_seed(seed)
        prompts = prompts.to(subject.device)
        chosen = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "pad_token_id": 0}
        ends = {"min_new_tokens": count, "max_new_tokens": count}
        return subject.model.generate(prompts, attention_mask=torch.ones_like(prompts), **chosen, **ends).cpu()


@reads_inputs
def generation_table(
    subject: HuggingFaceSubject, prompts: Tokens, count: int, epsilon: float = 0.3, seed: int = 0
) -> Table:
    """Sinks on the first token and elsewhere, by quarters of `count` generated tokens.

    A sink of a quarter is a token before it that gets more than `epsilon` of its queries' attention, mean over them.
    One pass over the generated text shows the calls of its generation. Without room for `count` tokens, fewer are
    generated: as many as the context holds.
    """
    start = prompts.shape[1]
    check_epsilon(epsilon)
    count = min(whole_number(count, "tokens to generate", 1), (subject.shape.n_ctx or LARGEST) - start)
    tokens = generated(subject, prompts, count, seed)
    bounds = sorted({start + count * i // PARTS for i in range(PARTS + 1)})
    read = partial(_sinks_of_parts, bounds=bounds, epsilon=epsilon)
    runs = [
        subject.run(batch, reads={"sinks": read}, logits=False)["sinks"].cpu() for _, batch in passes(subject, tokens)
    ]
    found = torch.cat(runs).mean((1, 2))  # sequence part quantity
    rows = []
    for i, end in enumerate(bounds[1:]):
        cells: dict[str, Cell] = {}
        for j, name in enumerate((ALPHA, STAYS, MOVED, SINKS)):
            values = found[:, i, j]
            ends = SIZES if name == SINKS else SHARES
            cells |= rate_cells(name, values) if name in (STAYS, MOVED) else mean_cells(name, values, ends)
        rows.append({GENERATED: end - start, **cells, NULL: found[:, i, -1].mean().item()})
    note = (
        f"{subject.name}: n={len(tokens)} prompts of {start} tokens, {count} generated at temperature 1 (seed {seed}), "
        f"end of text forbidden; {dtype_of(subject)}; all keys cached; epsilon {epsilon:g}; {STAYS}: share of heads; "
        f"{MOVED}: share of heads with a sink, and none on the first token; null: alpha_1 of uniform attention to all "
        f"that each query sees; {intervals(len(tokens))}"
    )
    figure = partial(sweep_figure, x=GENERATED, quantities=(ALPHA, STAYS, MOVED, SINKS))
    return Table("Does the sink stay while the model writes?", note, tuple(rows), figure)


def _sinks_of_parts(
    call: AttentionCall, bounds: list[int], epsilon: float
) -> Float[Tensor, "batch head part quantity"]:
    """alpha_1, whether it is a sink, whether only others are, how many sinks there are, and a null, of every part.

    A query that does not see a key, as behind a sliding window, gives it nothing.
    """
    pattern = call.proxy().pattern()[..., -call.k.shape[2] :]
    uniform = (call.allowed()[..., 0] / call.columns_seen().clamp(min=1)).expand(*call.q.shape[:3])
    parts = []
    for first, end in pairwise(bounds):
        alpha = pattern[:, :, first:end, :first].mean(2)
        sinks, null = alpha > epsilon, uniform[:, :, first:end].mean(2)
        on_first, others = sinks[..., 0], sinks[..., 1:].sum(-1)
        parts.append(torch.stack((alpha[..., 0], on_first, ~on_first & (others > 0), on_first + others, null), -1))
    return torch.stack(parts, 2)
