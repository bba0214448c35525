"""Which positions and which tokens are sinks, at which threshold, and what each position costs."""

from collections.abc import Callable, Sequence

from ..measurement.report import Report
from ..metrics.bootstrap import cells, estimate
from ..metrics.secondary import secondary_sinks, sink_grid, sink_tokens
from ..table import Cell, Table
from .note import note

Word = Callable[[int], str]
SEEN = 8
EPSILONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


def positions(report: Report, epsilon: float = 0.3) -> Table:
    """Sink rate and mean importance of every measured position, beside the null."""

    def row(position: int) -> dict[str, Cell]:
        return {
            "position": position,
            "paper": f"Sink_{position + 1}",
            **cells("sink rate", report.sink(position, epsilon)),
            "null rate": report.null_sink_rate(position, epsilon),
            "alpha": report.alpha(position).nanmean().item(),
            "null alpha": report.null_alpha(position).nanmean().item(),
        }

    rows = tuple(map(row, report.positions))
    return Table("Sink rate by position", note(report, epsilon), rows)


def grid(report: Report, epsilon: float = 0.3, epsilons: Sequence[float] = EPSILONS) -> Table:
    """Sink_1 over epsilon beside uniform attention's (Gu et al. 2025, Figure 3): how much the threshold decides."""
    rates, nulls = (sink_grid(values, epsilons) for values in (report.importance, report.null))
    first = report.positions.index(0)

    def row(i: int) -> dict[str, Cell]:
        return {
            "epsilon": epsilons[i],
            **cells("Sink_1", report.sink(0, epsilons[i])),
            "null": nulls[i, first].item(),
            "largest other": max((r for j, r in enumerate(rates[i].tolist()) if j != first), default=None),
        }

    rows = tuple(map(row, range(len(epsilons))))
    return Table("Sink_1 over epsilon", note(report, epsilon), rows)


def tokens(report: Report, word: Word = str, epsilon: float = 0.3, most: int = 10) -> Table:
    """The tokens that are sinks most often, the first position and later ones apart.

    `word` gives a token id its text. A token's share is that of its (occurrence, layer, head) above epsilon. Later
    positions count where at least `SEEN` queries can follow them: at the very end, a token's own query decides alone.
    Raises InputError where some positions were not measured.
    """
    report.alpha(report.protocol.length - 1)
    end = max(2, report.protocol.length - SEEN + 1)
    rows: list[dict[str, Cell]] = []
    for place, chosen in (("first", slice(0, 1)), ("later", slice(1, end))):
        found = sink_tokens(report.importance[..., chosen], report.tokens[:, chosen], epsilon)
        null = sink_grid(report.null[..., chosen], (epsilon,)).mean().item()
        for one in [one for one in found if one.share > 0][:most]:
            rows.append({"place": place, "token": one.token, "text": word(one.token), "occurrences": one.occurrences})
            rows[-1] |= {"share of heads": one.share, "null": null}
    text = f"{note(report, epsilon)}; null: that place under uniform attention; later: positions 1 to {end - 1}"
    return Table("Which tokens are sinks?", text, tuple(rows))


def secondary(report: Report, word: Word = str, epsilon: float = 0.3, cosine: float = 0.9) -> Table:
    """Tokens whose residual follows the first token's between its steps (Wong et al., arXiv 2512.22213).

    No rows where the first token's norm makes no step. Raises InputError where massive activations were not measured.
    """
    cosines, step = report.extra("cosine_to_first"), report.steps()
    title, text = "Secondary sinks", f"{note(report, epsilon)}; cosine above {cosine}"
    if step is None:
        return Table(title, f"{text}; the first token's norm makes no step of a factor of 2 between blocks", ())
    last = cosines.shape[1] - 1 if step.down is None else step.down - 1
    follows = secondary_sinks(cosines, step.up, max(step.up, last), cosine)
    ids, counts = report.tokens[follows].unique(return_counts=True)
    found = sorted(zip(counts.tolist(), ids.tolist(), strict=True), reverse=True)[:20]
    rows: list[dict[str, Cell]] = [
        {"token": i, "text": word(i), "times": n, "of": int((report.tokens[:, 1:] == i).sum())} for n, i in found
    ]
    fall = "never" if step.down is None else f"at block {step.down}"
    text = f"{text}; the first token's norm steps up at block {step.up}, down {fall}"
    return Table(title, text, tuple(rows))


def losses(report: Report, epsilon: float = 0.3) -> Table:
    """Next-token loss by position, in nats. Raises InputError where it was not measured."""
    loss = report.extra("loss")
    rows = tuple({"position": i + 1, **cells("loss", estimate(loss[:, i]))} for i in range(loss.shape[1]))
    text = f"{note(report, epsilon)}; the loss at a position is that of the token there, given those before it"
    return Table("Loss by position", text, rows)
