"""Figure 30: without a sink fine-tuning is as stable as with one: losses and gradient norms."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from statistics import fmean, median

import plotly.graph_objects as go

from sinkinterp.data.choices import Scale
from sinkinterp.data.sources import embedded_texts
from sinkinterp.files import cache_folder, write_file
from sinkinterp.runs.experiment import Experiment, Rule, Scope
from sinkinterp.runs.trained import PANELS, STEP, VALID_LOSS, Panel, run_of, training
from sinkinterp.runs.workers import in_order
from sinkinterp.table import MODEL, SEED, Table
from sinkinterp.train import checkpoint, loop

from .shared.figures import by_seed, last_steps
from .shared.fine_tuning import ChatRecipe
from .shared.rules import not_asked

SOFTMAX, SIGMOID = "sinkinterp/text-softmax", "sinkinterp/text-sigmoid"
MODELS = (SOFTMAX, "sinkinterp/text-softmax-48k", SIGMOID)
CHATS = 2_000  # docstrings as chats: the first sentence is the user's, the rest the assistant's
TUNING = ChatRecipe(length=128, steps=400, batch=16, micro_batch=16, lr=1e-3, warmup=20, watch_every=10)
STEPS = {Scale.SMOKE: 4, Scale.DEMO: TUNING.steps}
GRADIENT_NORM = "grad_norm"
SHOWN = (PANELS[0], Panel(GRADIENT_NORM, "gradient norm"), PANELS[1])  # with the sink beside the paper's
COLUMNS = (STEP, "train_loss", GRADIENT_NORM, VALID_LOSS, "alpha_1", "sink_1")


def recipes(scope: Scope) -> list[ChatRecipe]:
    """Every model with every seed."""
    chats, steps = _chats(scope.cache or cache_folder()), STEPS[scope.scale]
    tuning = replace(TUNING, data=str(chats), steps=steps, watch_every=min(TUNING.watch_every, steps))
    return [replace(tuning, model=model, seed=seed) for model in MODELS for seed in range(scope.seeds)]


def rows(scope: Scope) -> Table:
    """A row per model, seed and evaluation."""
    runs = recipes(scope)
    histories = in_order(scope.workers, partial(history_of, cache=scope.cache), runs, scope.progress("fine-tuning"))
    made = [
        {MODEL: recipe.model, SEED: recipe.seed, **{column: row.get(column) for column in COLUMNS}}
        for recipe, history in zip(runs, histories, strict=True)
        for row in history
    ]
    tuning = runs[0]
    note = (
        f"{tuning.steps} steps of {tuning.batch} chats of at most {tuning.length} tokens, lr {tuning.lr:g}, cosine to "
        f"0, {scope.seeds} seeds (order of the chats), fp32; the chats are {CHATS} English docstrings, whose first "
        "sentence the user says and whose rest the assistant; loss on the assistant's tokens of 32 held-out chats"
    )
    return Table.of("", note, tuple(made))


def history_of(recipe: ChatRecipe, cache: Path | None = None) -> checkpoint.History:
    """The evaluations of a recipe's run, a row each; the run is made where it is not in the cache."""
    recipe.check_batch(recipe.length)
    return checkpoint.history_of(loop.train(recipe.job(), run_of(recipe, cache)))


def _chats(cache: Path) -> Path:
    """Writes chats made of English docstrings into a file, whose name is a hash of its content."""
    parts = (text.partition(". ") for text in embedded_texts(cache_folder()))
    chats = [(said, answer) for said, _, answer in parts if answer][:CHATS]
    lines = "".join(f"{json.dumps({'messages': _messages(*chat)})}\n" for chat in chats)
    file = cache / f"chats-{sha256(lines.encode()).hexdigest()[:12]}.jsonl"
    if not file.is_file():
        write_file(file, lines)
    return file


def _messages(said: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{said}."}, {"role": "assistant", "content": answer}]


def draw(table: Table) -> go.Figure:
    """Loss, gradient norm and Sink_1 over steps, a line per model."""
    return training(Table("Fine-tuning", table.note, table.frame), SHOWN)


def _spike(run: Table) -> float:
    """The largest gradient norm over the median, after the warm-up."""
    rows = zip(run.numbers(STEP), run.numbers(GRADIENT_NORM), strict=True)
    norms = [norm for step, norm in rows if step > TUNING.warmup]
    return max(norms) / median(norms) if norms else float("nan")


def _fall(run: Table) -> float:
    """By how much the loss on held-out chats falls."""
    losses = run.numbers(VALID_LOSS)
    return losses[0] - losses[-1]


def _is_stable(table: Table) -> tuple[None, str]:
    with_sink, without = ([*map(_spike, by_seed(table, model))] for model in (SOFTMAX, SIGMOID))
    words = f"largest over median gradient norm: {fmean(without):.2f}, with softmax {fmean(with_sink):.2f}"
    return _of_one_model(words, [b <= 1.5 * a for a, b in zip(with_sink, without, strict=True)])


def _learns(table: Table) -> tuple[None, str]:
    with_sink, without = ([*map(_fall, by_seed(table, model))] for model in (SOFTMAX, SIGMOID))
    words = f"the loss falls by {fmean(without):.3f} nats, with softmax by {fmean(with_sink):.3f}"
    return _of_one_model(words, [b >= 0.9 * a for a, b in zip(with_sink, without, strict=True)])


def _of_one_model(words: str, shows: Sequence[bool]) -> tuple[None, str]:
    """Undecided, with the orders of the chats that show it: orders of chats are not seeds of models."""
    return (None, f"{words}; in {sum(shows)} of {len(shows)} orders of the chats, but of one model each")


EXPERIMENT = Experiment(
    claim="Without normalisation and without a sink, a model is fine-tuned as stably as one with a sink.",
    rows=rows,
    draw=draw,
    rules=(
        Rule("sigmoid's gradient norm has no larger spikes than 1.5 times those of softmax", _is_stable),
        Rule("sigmoid's loss falls by at least 90% of what that of softmax falls by", _learns),
        not_asked("the same of models of a billion parameters on 200,000 chats", "the models were never released"),
    ),
    recipes=recipes,
    digest=last_steps,
)
