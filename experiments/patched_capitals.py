"""Which activations carry the capital of a country: maps of patching, with first order, heads and paths."""

from collections.abc import Sequence
from functools import partial

import plotly.graph_objects as go
import torch

from sinkinterp.checks import InputError
from sinkinterp.data.choices import Bos, Scale
from sinkinterp.data.progress import Progress
from sinkinterp.interventions import Change, ChangeMLP, ChangeOutputs, ChangeResidual, ChangeValues
from sinkinterp.measurement.activation_patching import (
    CONTROL,
    FIRST_ORDER,
    RESTORED,
    TOKEN,
    activation_patching,
    restored_figure,
)
from sinkinterp.measurement.patching import logit_difference
from sinkinterp.measurement.path_patching import path_patching
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import HEAD, LAYER, POSITION, Cell, Table, high_of, low_of

from .shared.cases import Case, Model, of_first_model, on_models
from .shared.downstream import CAPITALS
from .shared.genuine import Has, models_with
from .shared.rules import of_each

CLAIM = "The residual at the country carries the answer up to a layer, where few heads move it to the last token."
MODELS: dict[Scale, list[Model]] = {Scale.SMOKE: ["sinkinterp/text-softmax-48k"], Scale.REAL: models_with(Has.TEXT)}
FEWER = 4  # of them, for a model that is measured on few sequences
WHAT, RESIDUALS, HEADS, TO_LOGITS, TO_VALUES = "what", "residuals", "heads", "heads to logits", "MLPs to values"
QUANTITIES = (RESTORED, CONTROL, FIRST_ORDER)
COLUMNS = (WHAT, LAYER, HEAD, POSITION, TOKEN, *(n for q in QUANTITIES for n in (q, low_of(q), high_of(q))))


def measure(case: Case, progress: Progress) -> Table:
    """Rows for residuals (with first order), heads, and the paths of the two heads that restore most."""
    subject, tokenizer = case.subject, case.subject.tokenizer
    assert tokenizer is not None, f"{subject.name} has a tokenizer"
    encoded = partial(tokenizer.encode, add_special_tokens=False)
    begin = [case.bos_token] if case.start is Bos.ALWAYS else []
    countries = list(CAPITALS)[: len(CAPITALS) if case.most is None else FEWER]
    rows = [begin + encoded(f"The capital of {name} is the city of") for name in countries]
    ids = [encoded(f" {CAPITALS[name]}")[0] for name in countries]
    if case.source in map(str, MODELS[Scale.REAL]) and len(set(map(len, rows))) > 1:
        raise InputError("a country has several tokens in this vocabulary; choose another model")
    clean, answers = torch.tensor([row[: min(map(len, rows))] for row in rows]), torch.tensor(ids)
    corrupted, metric = clean.roll(1, 0), logit_difference(ids, answers.roll(1).tolist())
    country = int((clean != corrupted).any(0).int().argmax())  # its position, from 0
    on_map = progress(f"patching {subject.name}")

    def mapped(site: Change, first_order: bool = False) -> Table:
        return activation_patching(
            subject, clean, corrupted, site=site, metric=metric, first_order=first_order, progress=on_map
        )

    tables = {RESIDUALS: mapped(ChangeResidual(), first_order=True), HEADS: mapped(ChangeOutputs())}
    best = sorted(tables[HEADS].records(), key=lambda row: -float(row[RESTORED] or 0))[:2]
    heads = [(int(row[LAYER] or 0), int(row[HEAD] or 0)) for row in best]
    group = subject.shape.n_heads // subject.shape.n_kv_heads
    for name, sender, receiver in (
        (TO_LOGITS, ChangeOutputs(heads=heads), None),
        (TO_VALUES, ChangeMLP(positions=[country]), ChangeValues(kv_heads=[(heads[0][0], heads[0][1] // group)])),
    ):
        tables[name] = path_patching(
            subject, clean, corrupted, sender=sender, receiver=receiver, metric=metric, progress=on_map
        )
    note = "; ".join(f"{name}: {table.note}" for name, table in tables.items())
    return Table.of(
        CLAIM,
        note,
        tuple(
            {**case.names, **dict.fromkeys(COLUMNS), WHAT: name, **row}
            for name, table in tables.items()
            for row in table.records()
        ),
    )


def draw(table: Table) -> go.Figure:
    """The map of the residuals of the first model."""
    first = of_first_model(table, CLAIM).where(**{WHAT: RESIDUALS})
    rows: list[dict[str, Cell]] = [{k: v for k, v in row.items() if k != HEAD} for row in first.records()]
    return restored_figure(Table.of(first.title, first.note, tuple(rows)))


def _is_moved_by_few(table: Table) -> tuple[bool | None, str]:
    shares = sorted(table.where(**{WHAT: HEADS}).numbers(RESTORED), reverse=True)
    mean = sum(shares) / len(shares)
    return shares[0] >= 0.5 and abs(
        mean
    ) <= 0.05, f"the best head restores {shares[0]:.2f}, a head at random {mean:.3f}"


def _is_near(table: Table) -> tuple[bool | None, str]:
    rows = table.where(**{WHAT: RESIDUALS}).records()
    errors = [abs(float(row[FIRST_ORDER] or 0) - float(row[RESTORED] or 0)) for row in rows]
    return max(
        errors
    ) <= 0.1, f"first order is wrong by {sum(errors) / len(errors):.2f} on average, at most {max(errors):.2f}"


RULES: Sequence[Rule] = (
    of_each(
        Rule("one head restores at least half of the answer, a head drawn at random at most .05", _is_moved_by_few)
    ),
    of_each(Rule("first order is within .1 of the exact map in every cell", _is_near)),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
