"""Rows of what `explain` says about a model: its graph, what cuts remove, the path, and how exact the parts are."""

from collections.abc import Iterator, Mapping

import plotly.graph_objects as go

from sinkinterp.backends.frozen import frozen
from sinkinterp.data.choices import Bos
from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import Tokens
from sinkinterp.measurement.explaining import explain
from sinkinterp.measurement.lens import head_pairs, parts_by_block
from sinkinterp.metrics.estimates import ratio
from sinkinterp.plots.theme import escaped
from sinkinterp.report.explanation import CUT, DRAWN, REMOVED, SHARE, Explanation, graph
from sinkinterp.report.readings import short_name
from sinkinterp.table import ALPHA_1, HEAD, LOSS, MODEL, SEED, Cell, Table, high_of, low_of

from .cases import READING, Case, of_first_model

WHAT, LINE, NAME, TO, NUMBER = "what", "line", "name", "to", "number"
IS_CUT, PATH, PATH_CUT, OF_HEAD, CHECK = "cut", "path", "path cut", "head", "check"
CHANGE = "change of loss"
QUANTITIES = (SHARE, ALPHA_1, REMOVED, LOSS, CHANGE)
COLUMNS = (WHAT, NAME, TO, NUMBER, *(name for q in QUANTITIES for name in (q, low_of(q), high_of(q))))
TEXTS, CHECKED = 32, 2  # texts that are explained, and in which every head is checked


def rows_of(case: Case, progress: Progress) -> Table:
    """Returns the rows of `explain`, and the largest error of the parts in any head that looks at the first token."""
    name, size = case.subject.name, (TEXTS, case.size()[1])
    token_set = case.natural_tokens(size, Bos.TOKENIZER, progress(f"{name}: {READING}"))
    assert token_set is not None, "the model has a tokenizer, or is one of ours"
    answer = explain(case.subject, token_set, progress=progress(f"explaining {name}"))
    error, n = largest_error(case, token_set.tokens[:CHECKED])
    check: dict[str, Cell] = {WHAT: CHECK, NAME: f"largest error of {n} heads in {CHECKED} texts", NUMBER: error}
    rows = [{**case.names, **dict.fromkeys(COLUMNS), **row} for row in (*_rows(answer), check)]
    note = f"{answer.note}; random parts: mean of two draws; in the stream, directly: docs/how_to/explain_a_head.md"
    return Table.of("", note, tuple(rows))


def largest_error(case: Case, tokens: Tokens) -> tuple[float, int]:
    """How far the parts of any head are from its score, relative to the largest of score and parts; how many heads."""
    worst, subject = 0.0, case.subject
    with frozen(subject, tokens) as run:
        for layer, values, _ in parts_by_block(run):
            if layer in run.calls:
                _, pairs, score, _ = head_pairs(run, layer, range(subject.shape.n_heads), values, on_slot=False)
                size = pairs.abs().amax((2, 3)).maximum(score.abs())
                worst = max(worst, float(((pairs.double().sum((2, 3)) - score).abs() / size).max()))
    return worst, len(run.calls) * subject.shape.n_heads


def _rows(answer: Explanation) -> Iterator[dict[str, Cell]]:
    for score in answer.heads:
        alpha, number = {ALPHA_1: score.alpha.mean().item()}, score.score.mean().item()
        yield {WHAT: OF_HEAD, NAME: f"head {score.name}", TO: answer.target, NUMBER: number, **alpha}
        for i in range(len(score.parts)):
            share = ratio(score.of_keys()[:, i], score.score)
            if i in score.main_parts() or abs(share.mean) >= 0.05:
                cells = {SHARE: share.mean, low_of(SHARE): share.low, high_of(SHARE): share.high}
                yield {WHAT: LINE, NAME: score.parts[i], TO: f"head {score.name}", **cells}
    for row in answer.cuts.records():
        yield {WHAT: IS_CUT, NAME: row[CUT], TO: f"head {row[HEAD]}", **_known(row)}
    path = answer.path
    if path is None:
        return
    neurons = path.neurons
    for neuron in neurons:
        yield {WHAT: LINE, NAME: f"neuron {path.at}.{neuron.index}", TO: path.writer, SHARE: neuron.share}
        for matrix, (first, others) in neuron.cosine.items():
            yield {WHAT: "cosine", NAME: f"neuron {path.at}.{neuron.index}", TO: matrix, NUMBER: first}
            yield {WHAT: "cosine", NAME: f"neuron {path.at}.{neuron.index}", TO: f"{matrix}, others", NUMBER: others}
    numbers: dict[str, float] = {"written": path.value, "dimension": path.dim, "share of the entry": path.share}
    numbers |= {"neurons that make most": path.n_neurons, "share of these neurons": path.covered}
    numbers |= {"readers": len(path.readers), "later heads": path.n_heads}
    numbers |= {"first block of readers": min(path.readers)[0]} if path.readers else {}
    numbers |= {f"erased by {path.eraser[0]}": path.eraser[1]} if path.eraser else {}
    for name, number in numbers.items():
        yield {WHAT: PATH, NAME: name, TO: path.writer, NUMBER: float(number)}
    for row in answer.path_cuts.records():
        renamed = {name.replace(f"{ALPHA_1} of readers", ALPHA_1): cell for name, cell in row.items()}
        yield {WHAT: PATH_CUT, NAME: row[CUT], **_known(renamed)}


def _known(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    return {name: cell for name, cell in cells.items() if name in COLUMNS}


def graph_of_rows(table: Table) -> go.Figure:
    """The graph of the lines in a table; lines below a tenth are left out."""
    lines = [(str(row[NAME]), str(row[TO]), float(row[SHARE] or 0)) for row in table.where(**{WHAT: LINE}).records()]
    return graph([line for line in lines if line[2] >= DRAWN], "Where the sink comes from", table.note)


def draw(table: Table) -> go.Figure:
    """The graph of the first model."""
    title = f"{short_name(str(table.records()[0][MODEL]))}, the first model: what makes heads look at the first token"
    return graph_of_rows(of_first_model(table, title)).update_layout(title_text=escaped(title))


def removed(table: Table, way: str) -> dict[tuple[str, str], list[float]]:
    """Returns what cutting the named parts removes, and the same number of random parts, by model and head."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in table.where(**{WHAT: IS_CUT}).records():
        if str(row[NAME]).endswith(way):
            found.setdefault((f"{row[MODEL]}, seed {row[SEED]}", str(row[TO])), []).append(float(row[REMOVED] or 0))
    return found
