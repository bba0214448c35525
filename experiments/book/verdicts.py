"""Lists every experiment with its verdicts, and what came of every claim of the paper, for docs/verdicts.md."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from sinkinterp._experiments import experiment_names, summary_of
from sinkinterp.runs.experiment import Outcome, counted

from .chapter import Chapter, chapters_in

ROOT = Path(__file__).parents[2]
BOOK, FILE = ROOT / "figures" / "book", ROOT / "docs" / "verdicts.md"
HEAD = """# Every experiment and its verdicts

`python -m experiments.book` makes this list from the numbers in [figures/book](../figures/book/index.html). Rules in
each module say which numbers support its claim. **holds**: four of five seeds, all seeds of a comparison with its
whole interval, or whole intervals, show it. **fails**: they show the opposite. **undecided**: in between.
**confounded**: the mean losses may differ by more than 2%. **diverged**: a training failed. **not asked**: models of
this scale cannot answer. **refused**: an edit did not do what its name says. **set-up**: the comparison needs it, and
it claims nothing. **sink**, **no sink**: the model has one or not, and no claim says which is right. Numbers
of scale `smoke` have no verdict, since they only check the path. A verdict is about our models at the scale that is
named (`demo`: toys of one layer; `text`: small models of Python code; `real`: models of `make models`), not about the
paper's.

| experiment | scale | what it asks | verdicts |
|---|---|---|---|
"""
PAPER = """
## The paper, row by row

A row names a table or figure of Gu et al. (2025), our experiment for it, the verdicts on our models, and the command
for the paper's models. That command needs the Hub, or GPUs and a text (`--text FILE`, or the name of a dataset).
`--dry-run` says how many hours and gigabytes it takes. **loopback**: a test runs the whole command on tiny random
models, which a local server offers under the paper's names. **shrunken**: a test runs it at 2 layers and 2 steps.

| row of the paper | experiment | verdicts here | with the paper's models | tested |
|---|---|---|---|---|
"""
PLACES = {"real": "genuine models", "text": "text", "demo": "toys"}
CLAIMS = (  # claim of the paper, experiment, why it comes out so; without numbers, which stand in the rows
    ("Table 1: natural and random text have a sink", "table01_inputs", "Gemma 3 has its sink on BOS alone."),
    ("Table 7: the sink goes where p1 goes", "table07_position_swap", "On text it moves to p5, less to later places."),
    ("Figures 2, 11 to 18: queries and the first key agree", "figure02_norms_angles", "The angle decides."),
    ("Figure 3: longer texts, fewer heads above epsilon", "figure03_thresholds", "In each of three models."),
    ("Figure 9: the domain hardly matters", "figure09_domains", "In SmolLM2 arithmetic has the least."),
    ("Figure 10: no relation to accuracy", "figure10_downstream", "Two pairs of twins are too few to say more."),
    ("Figures 19 to 24: early layers have less", "figure19_heads", "Gemma 3 has as much in its first layers."),
    ("Figure 4 (left): small models have it too", "figure04_scale_ladder", "Sizes of one family need the Hub."),
    ("Massive activations: the first token has them", "massive_activations", "In Gemma 3 later tokens have them too."),
    ("Table 2: weight decay strengthens it", "table02_weight_decay", "On text at the paper's sum of rate x decay."),
    ("Table 3: any position embedding has it", "table03_positions", "Toys begin with a random token; text with BOS."),
    ("Table 4: learned keys take it over", "table04_attention_biases", "A learned token before the text takes a part."),
    ("Table 5: a longer v* sends it back", "table05_fixed_values", "The same order on toys and on text."),
    ("Figure 7: a slot keeps the first token short", "figure07_slots", "On text one layer makes the token long."),
    ("Section 7.3: a removed slot costs much", "section7_removed_biases", "On toys a sink comes back."),
    ("Tables 6, 15: no normalisation, no sink", "table06_attention_operations", "Holds for sigmoid and elu."),
    ("Table 9: small rates, weak sinks", "table09_learning_rate", "On text five seeds leave the order of rates open."),
    ("Table 10: batch size does not matter", "table10_batch_size", "On text a quarter of the batch has no sink."),
    ("Table 10: a fixed token draws it", "table10_fixed_token", "Text: the first token that never changes has it."),
    ("Section 5: random tokens remove it", "section5_random_tokens", "On text the first token is long all the same."),
    ("Table 11: the activation does not matter", "table11_feed_forward", "Swish has a stronger sink on toys."),
    ("Table 12: heads do not matter", "table12_heads", "Added heads differ on toys; the rest is open."),
    ("Table 13: one dimension of k* suffices", "table13_learnable_dims", "More dimensions draw more on text."),
    ("Table 14: the scale matters, not sigmoid's settings", "table14_scale", "On text scales are open."),
    ("Section 7.2: post-norm has it", "section7_post_norm", "On text norms hide a long first token; toys have none."),
    ("Figure 4: it comes later at small rates", "figure04_dynamics", "It comes; a delay is not seen."),
    ("Figure 5, Section 6: it moves with the prefix", "figure05_prefix", "On toys with five tokens, on text not."),
    ("Figure 5: few data, no sink", "figure05_data_amount", "Few data weaken it; some is left."),
    ("Figure 28: an overfitted model has none", "figure28_overfitting", "Sinks come while toys overfit."),
    ("Figure 6: narrow windows prevent it", "figure06_windows", "Less than with causal attention; how wide is open."),
    ("Figure 29: p-norms do not prevent it", "figure29_p_norm", "p above one trains here, with little sink."),
    ("Figure 30: tuning without a sink is stable", "figure30_fine_tuning", "Orders of chats are not seeds."),
    ("Equations 32 to 42: scaling the output", "equation32_scaled_normalisation", "An identity, up to rounding."),
    ("Propositions 1 to 4: repeated tokens", "propositions", "Rotary heads may prefer the first of equal tokens."),
)
HUB, TRAINED, OURS = "loopback", "shrunken", ""  # how the command of a row is tested
ROWS = (  # row of the paper, experiment, how its command at the paper's scale is tested; None: it has none
    ("Table 1: inputs, base against chat", "table01_inputs", HUB),
    ("Table 2: weight decay", "table02_weight_decay", TRAINED),
    ("Table 3: position embeddings", "table03_positions", TRAINED),
    ("Table 3 and section 7.2, first token marked (ours)", "marked_first_token", None),
    ("Table 4: attention biases", "table04_attention_biases", TRAINED),
    ("Table 5, Figure 7 right: fixed v*", "table05_fixed_values", TRAINED),
    ("Tables 6 and 15: attention operations", "table06_attention_operations", TRAINED),
    ("Table 7: p1 replaced and swapped in GPT2-XL", "table07_position_swap", HUB),
    ("Table 8, Figure 4 left: sizes", "figure04_scale_ladder", HUB),
    ("Table 9: learning rate", "table09_learning_rate", TRAINED),
    ("Table 10 left: batch size", "table10_batch_size", TRAINED),
    ("Table 10 right, section 5: fixed and random tokens", "table10_fixed_token", TRAINED),
    ("Section 5: more random tokens", "section5_random_tokens", TRAINED),
    ("Table 11: feed-forward layers", "table11_feed_forward", TRAINED),
    ("Table 12: heads, shared biases", "table12_heads", TRAINED),
    ("Table 13: learnable dimensions of k*", "table13_learnable_dims", TRAINED),
    ("Table 14: scale, sigmoid's rates and decays", "table14_scale", TRAINED),
    ("Figures 2 and 11 to 18: norms and angles", "figure02_norms_angles", HUB),
    ("Figure 3: threshold and length", "figure03_thresholds", HUB),
    ("Figure 4 middle and right: dynamics", "figure04_dynamics", None),
    ("Figure 5 left and middle: prefix", "figure05_prefix", TRAINED),
    ("Figure 5 right: amount of data", "figure05_data_amount", TRAINED),
    ("Figure 6: windows", "figure06_windows", TRAINED),
    ("Section 7.2, Figure 7 left: post-norm", "section7_post_norm", TRAINED),
    ("Figure 7 middle: models with slots", "figure07_slots", TRAINED),
    ("Figures 7 and 8: norm ratios", "figure07_norm_ratios", None),
    ("Section 7.3: slots removed after training", "section7_removed_biases", TRAINED),
    ("Figure 9: domains", "figure09_domains", OURS),
    ("Figure 10: HellaSwag", "figure10_downstream", OURS),
    ("Figures 19 to 24 and 27: heads, Jamba", "figure19_heads", OURS),
    ("Figure 28: overfitting and the sink", "figure28_overfitting", TRAINED),
    ("Figure 29: p-norms, by norm ratios", "figure29_p_norm", TRAINED),
    ("Figure 30: fine-tuning", "figure30_fine_tuning", None),
    ("Equations 32 to 42", "equation32_scaled_normalisation", None),
    ("Propositions 1 to 4", "propositions", None),
    ("GPT-2's circuit (arXiv:2604.14722)", "gpt2_circuit", HUB),
)
TAIL = """
Figures 25 and 26 are attention maps of Jamba: `sinkinterp view ai21labs/Jamba-v0.1 --prompt "a text"`, which needs the
Hub. The command of Figure 27 measures the sinks of their heads. The history of `reproduce table09 --scale paper` holds
the curves of Figure 4 (middle and right). For the billion-parameter models of Figures 8 and 30, run
`sinkinterp train VARIANT --recipe paper-1b --text FILE`.
"""


def page() -> str:
    """The list as Markdown."""
    chapters: dict[str, list[Chapter]] = {name: [] for name in experiment_names()}
    for chapter in chapters_in(BOOK):
        chapters[chapter.name].append(chapter)
    verdicts = "".join(_row(name, chapter) for name, made in chapters.items() for chapter in (*made,) or (None,))
    paper = "".join(_paper_row(row, name, chapters[name], tested) for row, name, tested in ROWS)
    return HEAD + verdicts + PAPER + paper + TAIL


def claims() -> tuple[str, str]:
    """The count of the paper's claims by what came of them, and the table of them, as Markdown."""
    found: dict[str, dict[str, str]] = {name: {} for _, name, _ in CLAIMS}
    for chapter in chapters_in(BOOK):
        if chapter.name in found and chapter.scale in PLACES:
            found[chapter.name][chapter.scale] = _came_out(chapter)
    counts = "".join(
        _counted(place, [by[scale] for by in found.values() if scale in by]) for scale, place in PLACES.items()
    )
    head = f"| claim of the paper | {' | '.join(PLACES.values())} | why |\n|{'---|' * (len(PLACES) + 2)}\n"
    rows = (_claim_row(claim, name, found[name], why) for claim, name, why in CLAIMS)
    return counts, head + "".join(rows)


def _claim_row(claim: str, name: str, found: Mapping[str, str], why: str) -> str:
    page = next(file for file in (BOOK / f"{name}.md", BOOK / f"{name}.html") if file.is_file())
    cells = " | ".join(found.get(scale, "") for scale in PLACES)
    return f"| [{claim}](figures/book/{page.name}) | {cells} | {why} |\n"


def _came_out(chapter: Chapter) -> str:
    """What came of a claim: one word where its rules agree."""
    counts = Counter(verdict.outcome for verdict in counted(chapter.verdicts))
    asked, held = counts.total(), counts[Outcome.HOLDS]
    if not asked:
        return "refused" if Outcome.REFUSED in {verdict.outcome for verdict in chapter.verdicts} else "not asked"
    if held:
        return "**holds**" if held == asked else f"in part ({held} of {asked})"
    return "**fails**" if counts[Outcome.FAILS] else counts.most_common(1)[0][0].value


def _counted(place: str, words: Sequence[str]) -> str:
    counts = Counter(word.partition(" (")[0].strip("*") for word in words)
    asked = len(words) - counts["not asked"]
    said = ", ".join(f"{word} {n}" for word, n in counts.most_common() if word != "not asked")
    return f"- On {place}: {asked} claims asked; {said}.\n"


def _row(name: str, chapter: Chapter | None) -> str:
    if chapter is None:
        return f"| {name} | not run | {summary_of(name)} | |\n"
    return f"| {name} | {chapter.scale} | {chapter.summary} | {_counts(chapter)} |\n"


def _counts(chapter: Chapter) -> str:
    """How many rules came out how."""
    counts = Counter("set-up" if v.is_setup else v.outcome.value for v in chapter.verdicts)
    return ", ".join(f"{outcome} {count}" for outcome, count in counts.items())


def _paper_row(row: str, name: str, chapters: Sequence[Chapter], tested: str | None) -> str:
    here = "; ".join(f"{made.scale}: {_counts(made) or 'no verdict'}" for made in chapters) or "not run"
    text = " --text FILE" if tested == TRAINED else " --text FOLDER" if name.startswith("figure09") else ""
    command = "" if tested is None else f"`sinkinterp reproduce {name} --scale paper{text}`"
    return f"| {row} | {name} | {here} | {command} | {tested or ''} |\n"
