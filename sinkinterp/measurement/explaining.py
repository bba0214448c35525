"""explain: why does a head look at the first token? Its score in parts, their writers, and the effect of cuts.

    answer = si.explain("gpt2", text)
    answer.sentence
    answer.plot()

The score of a head with the first key, above the mean of the others that a query sees, is q.k_1 - mean_j q.k_j, scaled
and averaged over queries. The residual is a sum of parts (embedding, position, every head, every feed-forward layer,
biases). With the norms' scales frozen, queries and keys are linear in it, so the score is a sum over pairs of parts.
If a learned key k* (a slot) draws more attention than the first token, it takes the first key's place.

Source: Elhage et al. 2021 (A Mathematical Framework for Transformer Circuits); Sun et al. 2024, arXiv:2402.17762.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ..attention import CALL, MLP, NEURONS, RESIDUAL, AttentionCall, CallRead, Edit, Residual, SlotRow
from ..backends.anatomy import removed_after, token_mixer
from ..backends.frozen import FrozenRun, freezable, frozen
from ..backends.huggingface import HuggingFaceSubject
from ..backends.subject import Subject
from ..checks import LARGEST, InputError, both_or_none, is_whole, whole_number
from ..data.progress import OnProgress, Progress, progress_of, reported, silent
from ..data.tokens import Tokens, TokenSet, TokensLike
from ..interventions.attention_layers import ZeroKeySlot
from ..interventions.changes import Add, ChangeKeys, ChangeMLP, ChangeOutputs
from ..interventions.selectors import named_heads
from ..metrics.estimates import SHARES, SIZES, difference, estimate_cells, intervals, mean_cells, ratio
from ..metrics.importance import first_importance, slot_importance
from ..metrics.instruments import LOSS
from ..metrics.metric import NEXT_TOKEN_LOSS, Metric, PerSequence
from ..metrics.residuals import is_massive, lifetime
from ..report import explanation
from ..report.explanation import Explanation, Head, HeadScore, Path
from ..report.readings import public_name
from ..report.report import Report
from ..table import ALPHA_1, HEAD, Cell, Table, no_estimate
from . import lens
from .measure import ModelLike, answers_of, equal_inputs_of, inputs_of, measure
from .patching import answer_token

COVERED = 0.8  # of the entry, by the neurons that are counted
Keys = Float[Tensor, "sequence kv_head d_head"]


class WriteInScores(NamedTuple):
    """A write in the scores of a layer's heads: the score that it makes, the whole score, and it in the first key."""

    made: Float[Tensor, "sequence head"]
    whole: Float[Tensor, "sequence head"]
    keys: Keys


def massive_path(subject: ModelLike, tokens: TokensLike | Any) -> Path | explanation.NoPath:
    """Finds the writer of the first token's largest entry in the inputs of all blocks. One pass.

    An entry stands out where it is the largest of its block and `STANDS_OUT` times its mean size at other tokens. The
    largest of all blocks is followed if it does, else the one that does most; one that the embedding makes is followed
    nowhere. If nothing is left, this says so, with the numbers of the one that comes nearest.
    """
    given, ids = equal_inputs_of(subject, tokens)
    subject = freezable(given)
    reads = {
        "first": RESIDUAL.read(_first),
        "others": RESIDUAL.read(lambda x: x[:, 1:].float().abs().mean(1)),
        "massive": RESIDUAL.read(lambda x: is_massive(x)[:, 0].float()),
        "mlp": MLP.read(_first),
    }
    first, others, massive, mlp = (answer.mean(0) for answer in answers_of(subject, ids, reads))
    dims = first[:-1].abs().argmax(-1, keepdim=True)
    sizes, means = (x[:-1].gather(1, dims)[:, 0] for x in (first.abs(), others))
    times, stands_out = (sizes / means).nan_to_num(0), sizes >= explanation.STANDS_OUT * means
    in_order = [int(sizes.argmax()), *times.argsort(descending=True).tolist()]
    lives = [lifetime(massive[:, dim] > 0.5) for dim in dims[:, 0].tolist()]
    found = [block for block in in_order if stands_out[block]]
    for block in found:
        dim = int(dims[block])
        path = _path_to(subject, block, dim, first[:, dim], mlp[:, dim])
        if path is not None:
            return replace(path, times=float(times[block]), life=lives[block])
    nearest = (found or in_order[1:])[0]
    dim, ratio = int(dims[nearest]), float(times[nearest])
    return explanation.NoPath(dim, nearest, float(first[nearest, dim]), ratio, lives[nearest], is_embedding=bool(found))


def _path_to(subject: HuggingFaceSubject, block: int, dim: int, entry: Tensor, of_mlps: Tensor) -> Path | None:
    """Who writes and erases an entry, by its values and what feed-forward layers add; None if the embedding does.

    The erased part is a share of the entry at its largest, which may be behind the block with the largest ratio.
    """
    value = entry[block]
    shares = torch.stack((entry.diff() - of_mlps, of_mlps), 1) / value  # of what mixes tokens, and feed-forward layers
    if block == 0 or shares[:block].max() < entry[0] / value:
        return None
    at, is_mlp = divmod(int(shares[:block].argmax()), 2)
    last, of_last = divmod(int(shares[block:].argmin()), 2)
    erased = -float(shares[block + last, of_last] * value / entry[entry.abs().argmax()])
    eraser = (_part(subject, block + last, bool(of_last)), erased) if erased >= 0.5 else None
    share = float(shares[at, is_mlp])
    return Path(dim, bool(is_mlp), at, share * float(value), share, eraser, _part(subject, at, bool(is_mlp)), block)


def _part(subject: HuggingFaceSubject, block: int, is_mlp: bool) -> str:
    mixer = token_mixer(subject.modules.blocks[block], block in subject.shape.attention_layers)
    return f"{'MLP' if is_mlp else mixer} {block}"


def _first(x: Residual) -> Tensor:
    return x[:, 0].float()


def write_in_scores(run: FrozenRun, path: Path) -> dict[int, WriteInScores]:
    """The writer's update of the first token in the scores of each layer behind it."""
    x, written = run.trace["x"], run.trace["mlp"][:, path.at].clone()
    if not path.is_mlp:
        written = x[:, path.at + 1] - x[:, path.at] - written
    written[:, 1:] = 0
    found = {}
    for layer, call in run.calls.items():
        if layer > path.at:
            key = (run.call(layer, written).k - run.call(layer, torch.zeros_like(written)).k)[:, :, :1]
            made = lens.score_of(call, lens.contrast_of(call, False)[..., :1] @ key)
            found[layer] = WriteInScores(made.cpu(), lens.whole_score(call, False).cpu(), key[:, :, 0].cpu())
    return found


def followed(path: Path, subject: HuggingFaceSubject, tokens: Tokens, reads: Mapping[int, WriteInScores]) -> Path:
    """The path with the heads that read it, and the neurons that write it where they are found.

    A reader has a positive score, at least half of which the write makes.
    """
    readers = {}
    for layer, (made, whole, _) in reads.items():
        share = made.mean(0) / whole.mean(0)
        for head in ((share >= explanation.READER) & (whole.mean(0) > 0)).nonzero().flatten().tolist():
            readers[layer, head] = share[head].item()
    path = replace(path, readers=readers, n_heads=len(reads) * subject.shape.n_heads)
    return _with_neurons(path, subject, tokens) if path.is_mlp else path


def path_edit(keys: Mapping[int, Keys], kv_heads: Collection[Head], length: int) -> Edit:
    """The edit that takes a part out of the first key of some kv_heads, and leaves the residual as it is."""
    values = {}
    for layer in {layer for layer, _ in kv_heads}:
        values[layer] = keys[layer].new_zeros(*keys[layer].shape[:2], length, keys[layer].shape[2])
        values[layer][:, :, 0] = -keys[layer]
    return ChangeKeys(Add(values), kv_heads=sorted(kv_heads))


# The neurons of a feed-forward layer: what each writes into a dimension, and which way its input points

SHOWN, OUTPUT = 5, "output"  # neurons that write most; the name of the matrix that they write through


def _with_neurons(path: Path, subject: HuggingFaceSubject, tokens: Tokens) -> Path:
    """The path with the neurons of its feed-forward layer, by their writes into its dimension at the first token.

    It stays as it is where no output matrix of the layer is found, as with experts.
    """
    block, dim, seen = path.at, path.dim, dict[str, Tensor]()
    tap = subject.modules.taps[NEURONS][block]
    if tap is None:
        return path
    down: Any = tap.module
    shape = _rows(down).T.shape
    named = subject.modules.blocks[block].named_modules()
    linears = {name: m for name, m in named if isinstance(m, nn.Linear | Conv1D) and _rows(m).shape == shape}
    inputs = {name: m for name, m in linears.items() if "attn" not in name and "query" not in name}

    def keep(name: str) -> Any:
        return lambda module, args, output: seen.update({name: args[0]})

    with removed_after([m.register_forward_hook(keep(name)) for name, m in {**inputs, OUTPUT: down}.items()]):
        read, at = MLP.read(lambda x: x[:, 0]), subject.shape.mlp_layers.index(block)
        update = subject.run(tokens, reads={"mlp": read}, logits=False, blocks=range(block + 1))["mlp"][:, at]
    x = {name: given.view(*tokens.shape, -1) for name, given in seen.items()}
    made = x[OUTPUT][:, 0] * _rows(down)[dim]
    output = made.sum(-1) + (0 if getattr(down, "bias", None) is None else down.bias.detach()[dim])
    writes = made * (update[:, dim] / output)[:, None]  # a factor or a norm after it
    top = writes.mean(0).abs().topk(min(SHOWN, writes.shape[1])).indices
    cosines = {n: F.cosine_similarity(x[n][:, :, None], _rows(m)[top], dim=-1) for n, m in inputs.items()}
    means = {n.rpartition(".")[2]: (c[:, 0].mean(0), c[:, 1:].mean((0, 1))) for n, c in cosines.items()}
    shares = writes.mean(0) / path.value
    sums = shares.sort(descending=True).values.cumsum(0)
    count = int((sums < COVERED).sum().clamp(max=len(sums) - 1)) + 1
    shown = tuple(
        explanation.Neuron(n, float(shares[n]), {name: (float(a[i]), float(b[i])) for name, (a, b) in means.items()})
        for i, n in enumerate(top.tolist())
    )
    return replace(path, neurons=shown, n_neurons=count, covered=float(sums[count - 1]))


def _rows(module: Any) -> Float[Tensor, "output input"]:
    weight = module.weight.detach()
    return weight.T if isinstance(module, Conv1D) else weight


TOP = 3  # heads that are explained by default
TEXTS = 32  # of the default text
DRAWS = 2  # of random parts
EXPECTED = 7 + TOP * (1 + DRAWS)  # passes


class Work:
    """The model, its inputs, the report without cuts, and how many forward passes over all texts were made.

    on_slot: whether a learned key draws more attention than the first token, and is explained in its place.
    """

    def __init__(
        self, subject: HuggingFaceSubject, token_set: TokenSet, generator: torch.Generator, show: OnProgress
    ) -> None:
        self.subject, self.token_set, self.generator = subject, token_set, generator
        self.show, self.passes, self.expected = show, 0, EXPECTED
        self.calls: dict[int, list[AttentionCall]] = {}  # of the layers that are explained, in the order of the texts
        self.before = self.report()
        slot = self.before.slot_importance
        draws_more = slot is not None and bool(slot.mean() > self.before.alpha().mean())
        self.on_slot = draws_more and _has_learned_keys(subject, token_set.tokens)

    @property
    def alphas(self) -> tuple[Tensor, Tensor]:
        """Importance of what is explained, and its null; `sequence layer head`."""
        slot, null = self.before.slot_importance, self.before.slot_null
        if self.on_slot and slot is not None and null is not None:
            return slot, null
        return self.before.alpha(), self.before.null_alpha()

    def report(self, *edits: Edit) -> Report:
        """What the model does under these edits."""
        self.count()
        return measure(self.subject, self.token_set, edits=edits, positions=(0,), instruments=LOSS, progress=False)

    def alpha(self, layer: int, read: CallRead, *edits: Edit) -> Float[Tensor, "sequence head"]:
        """What a layer's calls answer under these edits; the blocks behind it are left out."""
        self.count()
        (alpha,) = answers_of(self.subject, self.token_set.tokens, {"alpha": read}, edits, range(layer + 1))
        return alpha[:, self.subject.shape.attention_layers.index(layer)].cpu()

    def count(self) -> None:
        """One more pass, or a layer of the pass that runs block by block."""
        self.passes += 1
        self.show(min(self.passes, self.expected), self.expected)


def explain(
    model: ModelLike,
    tokens: TokensLike | Any = None,
    *,
    head: Head | Sequence[Head] | None = None,
    answer: str | None = None,
    instead: str | None = None,
    seed: int = 0,
    progress: bool | OnProgress = True,
) -> Explanation:
    """Why a head, or each of several, looks at the first token; by default the three with the strongest sinks.

    Takes the models and tokens that `measure` takes, of one length; by default 32 docstrings. Scores are in units of
    the score (scaled, before a softcap; a bias of positions is a part). It is followed by their ablation: at the
    first token, each named part becomes its mean over the other tokens of its text. The control does so with as many
    parts drawn at random from `seed`. With `answer` and `instead`, texts of one token such as " Paris" and " Madrid",
    `parts()` also has what each part and each head itself writes into the difference of their logits after the last
    token (see `lens`; all parts of the residual sum to it). Raises InputError for heads that are not there, for models
    whose norms cannot be frozen, and where the parts do not add up.
    """
    given, token_set = inputs_of(model, tokens)
    ids = token_set.of_one_length()
    if tokens is None:
        ids = ids[:TEXTS]
        token_set = replace(TokenSet.of(ids, token_set.source), bos=token_set.bos)
    subject = freezable(given)
    written = _written(subject, ids, answer, instead)
    with progress_of(progress, f"explaining {subject.name}") as on_pass:
        generator = torch.Generator().manual_seed(whole_number(seed, "seed", 0, LARGEST))
        work = Work(subject, token_set, generator, on_pass)
        found = None if work.on_slot else massive_path(subject, ids)
        path, no_path = (found, None) if isinstance(found, Path) else (None, found)
        scores, reads = _scores(work, _heads_of(work, head), path)
        cuts = [row for score in scores for row in cut_rows(work, score)]
        path = None if path is None else followed(path, subject, ids, reads)
        path_rows = tuple(_rows_of_path(work, path, reads))
    protocol, how = work.before.protocol, "norms frozen, scores before any softcap"
    note = f"{public_name(protocol.model)}: {protocol.line()}; {how}; {intervals(protocol.sequences)}"
    ablation = (
        f"{note}; in the stream: at the first token, the part becomes its mean over the other tokens; directly: in the "
        f"keys of this head alone, norms frozen; random: as many other parts, the mean of {DRAWS} draws; removed: "
        f"share of what is above uniform attention{'; k* becomes 0' if work.on_slot else ''}"
    )
    path_note = f"{note}; path: the write is taken out of the readers' first keys, whole: out of the residual"
    return Explanation(
        note=note,
        target="k*" if work.on_slot else "the first token",
        heads=tuple(scores),
        path=path,
        cuts=Table.of("What remains when the named parts are cut?", ablation, tuple(cuts)),
        path_cuts=Table.of("What does the path cost?", path_note, path_rows),
        no_path=no_path,
        written=written,
    )


def _rows_of_path(work: Work, path: Path | None, reads: dict[int, WriteInScores]) -> Iterator[dict[str, Cell]]:
    """The effect of each cut of the path on its readers, on all heads, and on the loss; empty without readers."""
    if path is None or not path.readers:
        return
    layers = work.subject.shape.attention_layers
    rows, heads = zip(*((layers.index(layer), head) for layer, head in path.readers), strict=True)
    for cut, edits in _path_cuts(work, path, reads).items():
        report = work.report(*edits) if edits else work.before
        alpha, (old, new) = report.alpha(), (r.extra(NEXT_TOKEN_LOSS).nanmean(1) for r in (work.before, report))
        yield {
            explanation.CUT: cut,
            **mean_cells(f"{ALPHA_1} of readers", alpha[:, list(rows), list(heads)].mean(1), SHARES),
            **mean_cells(f"{ALPHA_1} of all heads", alpha.mean((1, 2)), SHARES),
            **mean_cells("loss", new, SIZES),
            **estimate_cells("change of loss", difference(old, new, paired=True)),
        }


def _path_cuts(work: Work, path: Path, reads: Mapping[int, WriteInScores]) -> dict[str, Sequence[Edit]]:
    """The cuts of a path, and the control: vectors of the same lengths that point at random.

    A writer that is neither a feed-forward layer nor attention is cut in keys alone.
    """
    shape, length = work.subject.shape, work.token_set.tokens.shape[1]
    keys = {layer: of_layer.keys for layer, of_layer in reads.items()}
    kv_heads = {(layer, head * shape.n_kv_heads // shape.n_heads) for layer, head in path.readers}
    drawn = {layer: torch.randn(x.shape, generator=work.generator) for layer, x in keys.items()}
    as_long = {layer: x * (keys[layer].norm(dim=-1) / x.norm(dim=-1))[..., None] for layer, x in drawn.items()}
    cuts: dict[str, Sequence[Edit]] = {
        "none": (),
        "path: the readers' first keys": (path_edit(keys, kv_heads, length),),
    }
    if path.is_mlp or path.at in shape.attention_layers:
        writer = ChangeMLP if path.is_mlp else ChangeOutputs
        cuts["whole write"] = (writer(lens.AS_OTHERS, layers=[path.at], positions=lens.FIRST),)
    return cuts | {"control: random vectors as long": (path_edit(as_long, kv_heads, length),)}


def _written(subject: Subject, tokens: Tokens, answer: str | None, instead: str | None) -> explanation.Written | None:
    """The parts of the logits of two answers; None without answers."""
    both_or_none(answer, instead, "answer= and instead=")
    if answer is None or instead is None:
        return None
    if answer == instead:
        raise InputError(f"answer and instead are both {answer!r}, whose logits are equal")
    right, wrong = (torch.tensor(answer_token(subject, text)).expand(len(tokens)) for text in (answer, instead))
    return explanation.Written(answer, instead, lens.logit_parts(subject, tokens, right, wrong))


def _has_learned_keys(subject: Subject, tokens: Tensor) -> bool:
    """Tells if every slot is a key that can be explained, rather than a learned logit."""
    reads = {"learned": lambda call: torch.full((len(call.q),), isinstance(call.slot, SlotRow))}
    return bool(subject.run(tokens[:1], reads=reads, logits=False)["learned"].all())


def _heads_of(work: Work, head: Any) -> list[Head]:
    """The heads that were asked for, or the strongest. Raises InputError for heads that are not there."""
    layers, n_heads = work.subject.shape.attention_layers, work.subject.shape.n_heads
    if head is None:
        alpha = work.alphas[0].mean(0)
        strongest = alpha.flatten().argsort(descending=True)[:TOP].tolist()
        return sorted((layers[i // n_heads], i % n_heads) for i in strongest)
    is_one = isinstance(head, tuple) and len(head) == 2 and all(map(is_whole, head))
    return named_heads([head] if is_one else head, "head", layers, n_heads)


def _scores(work: Work, heads: Sequence[Head], path: Path | None) -> tuple[list[HeadScore], dict[int, WriteInScores]]:
    """The scores of heads in parts, and how later layers read what a path's writer adds. One pass; blocks run by part.

    Raises InputError where the parts do not add up to a score.
    """
    named: dict[int, tuple[tuple[str, ...], dict[str, Edit]]] = {}
    parts: dict[Head, list[tuple[Tensor, ...]]] = {}
    reads: dict[int, list[WriteInScores]] = {}
    tokens, last = work.token_set.tokens, max(layer for layer, _ in heads)
    batches = tokens.split(max(1, lens.CHUNK // tokens.shape[1]))
    work.expected += len(batches) * sum(layer <= last for layer in work.subject.shape.attention_layers)
    for batch in batches:
        with frozen(work.subject, batch) as run:
            for layer, values, cuts in lens.parts_by_block(run):
                work.count()
                if mine := [head for of_layer, head in heads if of_layer == layer]:
                    work.calls.setdefault(layer, []).append(run.calls[layer])
                    names, *tensors = lens.head_pairs(run, layer, mine, values, work.on_slot)
                    named[layer] = names, cuts
                    for i, head in enumerate(mine):
                        parts.setdefault((layer, head), []).append(tuple(x[:, i].cpu() for x in tensors))
                if layer == last:
                    break
            for layer, of_layer in (write_in_scores(run, path) if path else {}).items():
                reads.setdefault(layer, []).append(of_layer)
    work.count()
    scores = []
    for layer, head in heads:
        names, cuts = named[layer]
        i = work.before.attention_layers.index(layer)
        slot = {lens.SLOT: ZeroKeySlot(heads=[(layer, head)])} if work.on_slot else {}
        tensors = [torch.cat(chunks) for chunks in zip(*parts[layer, head], strict=True)]
        score = HeadScore(layer, head, names, cuts | slot, *tensors, *(x[:, i, head] for x in work.alphas))
        if not score.error <= lens.TOLERANCE:
            is_half = score.score.dtype.itemsize < 4
            half = f"{score.score.dtype} rounds too much; load it in float32"
            why = half if is_half else "its queries or keys are not linear in the residual"
            raise InputError(f"the parts of head {score.name} do not add up to its score: {why}")
        scores.append(score)
    return scores, {layer: WriteInScores(*map(torch.cat, zip(*chunks, strict=True))) for layer, chunks in reads.items()}


# What is left when parts are cut


def cut_rows(work: Work, head: HeadScore) -> Iterator[dict[str, Cell]]:
    """The attention of a head that is lost when the named parts are cut, and when random parts are cut instead."""
    can_be_cut = [j for j, name in enumerate(head.parts) if name in head.cuts]
    named = [j for j in head.main_parts() if j in can_be_cut]
    others = [j for j in can_be_cut if j not in head.main_parts() and head.parts[j] != lens.SLOT]
    orders = [torch.randperm(len(others), generator=work.generator)[: len(named)] for _ in range(DRAWS)]
    drawn = [[others[i] for i in order.tolist()] for order in orders] if len(others) >= len(named) else []
    names, layer = " + ".join(head.parts[j] for j in named), head.layer
    n_kv_heads, length = work.subject.shape.n_kv_heads, work.token_set.tokens.shape[1]

    def in_stream(chosen: Sequence[int]) -> PerSequence:
        read = slot_importance if work.on_slot else first_importance
        return work.alpha(layer, read, *(head.cuts[head.parts[j]] for j in chosen))[:, head.head]

    def directly(chosen: Sequence[int]) -> PerSequence:
        key = head.first_keys[:, chosen].sum(1, keepdim=True).expand(-1, n_kv_heads, -1)
        edit = path_edit({layer: key}, [(layer, head.head * n_kv_heads // work.subject.shape.n_heads)], length)
        rows = torch.arange(len(key)).split([len(call.q) for call in work.calls[layer]])
        edited = [edit.for_sequences(i).call(call) for i, call in zip(rows, work.calls[layer], strict=True)]
        return torch.cat([first_importance(call)[:, head.head] for call in edited]).cpu()

    ways: dict[str, Callable[[Sequence[int]], PerSequence]] = {explanation.IN_STREAM: in_stream}
    ways |= {} if work.on_slot else {explanation.DIRECTLY: directly}
    for way, alpha in ways.items() if named else ():
        for cut, draws in {names: [named], explanation.RANDOM: drawn}.items():
            if draws:
                after = torch.stack([alpha(chosen) for chosen in draws]).mean(0)
                gone = ratio(head.alpha - after, head.alpha - head.null)  # of what is above uniform attention
                removed = estimate_cells(explanation.REMOVED, gone)
                row: dict[str, Cell] = {HEAD: head.name, explanation.CUT: f"{cut}, {way}"}
                row |= mean_cells(ALPHA_1, after, SHARES)
                yield row | (removed if head.is_above_null else no_estimate(explanation.REMOVED))


def cut_maps(
    model: ModelLike, tokens: TokensLike, answer: Explanation, progress: Progress = silent
) -> dict[Head, list[explanation.CutMap]]:
    """Per explained head, its mean attention map and the loss as the model is, and with each named part cut by itself.

    A part is cut in the stream: at the first token it becomes its mean over the other tokens. Tokens are those of the
    explanation, of one length; a run for each part. Raises InputError as `explain` does, and for another model.
    """
    subject, ids = equal_inputs_of(model, tokens)
    if not isinstance(answer, Explanation) or not answer.note.startswith(f"{public_name(subject.name)}: "):
        raise InputError(f"answer is what si.explain said of {subject.name} on these tokens; got {answer!r:.60}")
    layers, heads = subject.shape.attention_layers, sorted({score.head for score in answer.heads})
    pattern = Metric("pattern", CALL, lambda call: call.pattern()[:, heads])
    cuts: dict[str, list[Edit]] = {explanation.NOTHING: []}
    cuts |= {name: [edit] for score in answer.heads for name, edit in score.named_cuts().items()}
    maps: dict[Head, list[explanation.CutMap]] = {(score.layer, score.head): [] for score in answer.heads}
    for name, edits in reported([*cuts.items()], progress, "cutting parts"):
        report = measure(subject, ids, edits=edits, positions=(0,), instruments=[*LOSS, (pattern,)], progress=False)
        loss, weights = report.extra(NEXT_TOKEN_LOSS).nanmean().item(), report.extra(pattern).mean(0)
        for layer, head in maps:
            weights_of_head = weights[layers.index(layer), heads.index(head)].numpy()
            maps[layer, head].append(explanation.CutMap(name, weights_of_head, loss))
    return maps
