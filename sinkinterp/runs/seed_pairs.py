"""Models compared seed by seed, at equal loss."""

from collections.abc import Collection, Mapping, Sequence

from ..plots.columns import LOSS, MODEL, SEED
from ..table import Table
from .verdict import Outcome, Verdict, number

LEAST_SEEDS = 3  # fewer decide nothing
LOSS_GAP = 0.02  # nats; runs that differ by more are not compared at equal loss


def _by_seed(runs: Table, model: str, quantity: str) -> dict[int, float]:
    return {int(number(row[SEED])): number(row[quantity]) for row in runs.rows if row[MODEL] == model}


def differences(runs: Table, of: str, than: str, quantity: str) -> dict[int, float]:
    """How much higher the quantity is in one model than in another, by seed."""
    one, other = (_by_seed(runs, name, quantity) for name in (of, than))
    return {seed: one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())}


def are_too_many(seeds: Sequence[int], of: int) -> bool:
    """Whether they are more than one in five."""
    return 5 * len(seeds) > of


def gaps_in_words(gaps: Mapping[int, float], unequal: Sequence[int]) -> str:
    """By how much losses differ in the seeds that are compared, and which seeds are not."""
    kept = [gap for seed, gap in gaps.items() if seed not in unequal]
    if not kept:
        return f"losses differ by {_range(gaps.values())} nats"
    words = f"losses differ by {_range(kept)} nats"
    others = ", ".join(f"{gaps[seed]:+.3f}" for seed in unequal)
    return f"{words}, beyond that in {len(unequal)} of {len(gaps)} seeds: {others}" if unequal else words


def _range(values: Collection[float]) -> str:
    return f"{min(values):+.3f} to {max(values):+.3f}" if values else "nan"


def unless_worse(verdict: Verdict, runs: Table, model: str, baseline: str | None) -> Verdict:
    """The verdict, or confounded where the model's loss is above the baseline's in more than one of five seeds."""
    if baseline is None:
        return verdict
    gaps = differences(runs, model, baseline, LOSS)
    worse = [seed for seed, gap in gaps.items() if gap > LOSS_GAP]
    if len(gaps) < LEAST_SEEDS or not are_too_many(worse, of=len(gaps)):
        return verdict
    reason = f"{verdict.reason}; beside {baseline}, {gaps_in_words(gaps, worse)}"
    return Verdict(verdict.claim, Outcome.CONFOUNDED, reason)
