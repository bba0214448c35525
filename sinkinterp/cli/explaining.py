"""The commands that find causes: why heads look at the first token, and which activations carry a behaviour."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..checks import InputError, both_or_none, refusing
from ..data.progress import progress_bars
from . import options
from .drawing import heads_named, layer_and_head
from .measuring import Input
from .terminal import brief, deliver, print_line

if TYPE_CHECKING:
    from ..backends.subject import Subject
    from ..interventions.changes import Change
    from ..report.explained import Explanation
    from ..table import Table

ELSEWHERE = "All tables: --full. A page: --html FILE."


def explain(
    model: options.Model,
    head: Annotated[list[str], typer.Option("--head", metavar="LAYER.HEAD")] = [],
    answer: str | None = None,
    instead: str | None = None,
    given: Input = Input(),
    loading: options.Weights = options.Weights(),
    files: options.Page = options.Page(),
) -> None:
    """Say why heads look at the first token: which parts write what their keys hold, and what cutting them removes."""
    with progress_bars() as progress:
        from ..measurement.explaining import cut_maps, explain as explain_heads
        from ..pages.page import Section, page
        from ..report.readings import short_name

        heads = heads_named(head)
        both_or_none(answer, instead, "--answer and --instead")
        given.check()
        options.check_sizes(model, heads, given.length)
        subject = loading.subject(model)
        token_set = given.token_set(subject, model, 64, 32, progress("reading docstrings"))
        asked: dict[str, Any] = {"head": heads, "answer": answer, "instead": instead, "seed": given.seed or 0}
        found = explain_heads(subject, token_set, **asked, progress=progress("explaining"))
    maps = {} if files.html_out is None else cut_maps(subject, token_set, found)

    def as_page() -> str:
        heads = [(score.layer, score.head) for score in found.strongest_first]
        sections = [Section(f"Head {layer}.{h}", "", [found.plot((layer, h), maps[layer, h])]) for layer, h in heads]
        sections += [Section(table.title, table.note, [], [table]) for table in found.tables()]
        return page(f"{short_name(subject.name)}: where the sink comes from", found.sentence.split("\n"), sections)

    tables = [replace(table, note=table.note.removeprefix(found.note).lstrip("; ")) for table in found.tables()]
    everything: list[Table | str] = [found.sentence, *tables, found.note]
    shown = everything if files.full else brief(found.sentence, _of_strongest(found), ELSEWHERE, found.note)
    deliver(shown, (files.html_out, as_page), force=files.force)


def _of_strongest(answer: "Explanation") -> "Table":
    """The parts of the head with the strongest sink."""
    from ..table import HEAD, LAYER

    strongest = answer.strongest_first[0]
    parts = answer.parts().where(**{LAYER: strongest.layer, HEAD: strongest.head})
    return replace(parts, title=f"Which parts make head {strongest.name} look at {answer.target}?")


class Patched(StrEnum):
    """What is patched at every place of the map."""

    RESIDUAL = "residual"
    FEED_FORWARD = "feed-forward"
    ATTENTION = "attention"
    HEADS = "heads"
    EDGES = "edges"
    PATHS = "paths"


@dataclass(frozen=True)
class What:
    """The places that `patch` patches: all places of a site, or the senders of a path."""

    site: Patched = Patched.RESIDUAL
    head: Annotated[list[str], typer.Option("--head", metavar="LAYER.HEAD")] = field(default_factory=list)
    to: Annotated[str | None, typer.Option(metavar="LAYER.HEAD.q|k|v")] = None
    first_order: bool = False
    direct: bool = False

    @refusing
    def check(self) -> Iterator[str]:
        """Raises InputError for options that do not go with the site."""
        heads = heads_named(self.head)
        if self.site is Patched.EDGES and heads is None:
            yield "--site edges patches every weight of some heads; name them, such as --head 3.7"
        if heads is not None and self.site not in (Patched.HEADS, Patched.EDGES):
            yield "--head goes with --site heads or --site edges; a path ends at --to"
        if self.to is not None and self.site is not Patched.PATHS:
            yield "--to says where a path ends; add --site paths"
        if self.direct and self.site not in (Patched.HEADS, Patched.ATTENTION, Patched.FEED_FORWARD):
            yield "--direct goes with --site heads, attention or feed-forward, and with --answer; leave it out"
        if self.first_order and self.site in (Patched.EDGES, Patched.PATHS):
            yield f"--first-order estimates no {self.site}; leave it out, or take another --site"

    def table(self, subject: "Subject", **measured: Any) -> "Table":
        """The share that each place restores: what `activation_patching` takes of prompts and answers is `measured`."""
        from ..measurement.activation_patching import activation_patching, twin_patching
        from ..measurement.path_patching import path_patching

        if self.site is Patched.PATHS:
            return path_patching(subject, **measured, receiver=_receiver(self.to))
        site, by = self._change()
        estimates: dict[str, Any] = {"first_order": self.first_order, "direct": self.direct}
        if "target" in measured:
            return twin_patching(subject, **measured, site=site, by=by, **estimates)
        return activation_patching(subject, **measured, site=site, by=by, **estimates)

    def _change(self) -> tuple["Change", tuple[str, ...]]:
        """The site, and the axes of its map."""
        from ..attention import sites
        from ..interventions import Change, ChangeMLP, ChangeOutputs, ChangeResidual

        by_position, by_head, heads = ("layer", "position"), ("layer", "head"), heads_named(self.head)
        kinds = {
            Patched.RESIDUAL: (ChangeResidual(), by_position),
            Patched.FEED_FORWARD: (ChangeMLP(), by_position),
            Patched.ATTENTION: (ChangeOutputs(), by_position),
            Patched.HEADS: (ChangeOutputs(heads=heads), by_head),
            Patched.EDGES: (Change(sites.PATTERN, heads=heads), (*by_head, "position", "key")),
        }
        return kinds[self.site]


Texts = Annotated[list[str], typer.Option(parser=options.filled)]


@dataclass(frozen=True)
class Prompts:
    """Two prompts or two models that `patch` compares, and the answers that it compares them by."""

    clean: Texts = field(default_factory=list)
    corrupted: Texts = field(default_factory=list)
    into: str | None = None
    text: Texts = field(default_factory=list)
    answer: str | None = None
    instead: str | None = None
    sink: bool = False

    @refusing
    def check(self) -> Iterator[str]:
        """Raises InputError for one answer alone, for answers beside the sink, and for the names of files."""
        from ..data.texts import names_file

        given = [bool(each) for each in (self.clean, self.corrupted, self.into, self.text)]
        if given[:3] != [False, False, True] and given != [True, True, False, False]:
            text, twin = "'The cat saw the dog'", self.into or "TWIN"
            two = f"two prompts, `sinkinterp patch MODEL --clean {text} --corrupted 'The dog saw the cat'`"
            yield f"write {two}, or a text of two models, `sinkinterp patch MODEL --into {twin} --text {text}`"
        both_or_none(self.answer, self.instead, "--answer and --instead", ", or --sink")
        if self.sink and self.answer is not None:
            yield "--answer and --instead are a metric themselves; leave --sink out"
        for prompt in filter(names_file, (*self.clean, *self.corrupted, *self.text)):
            yield f'{prompt} is a file; give the prompt itself, such as "$(head -1 {prompt})"'

    def metric(self, subject: "Subject") -> dict[str, Any]:
        """The metric that was asked for, as a keyword of patching; none for the usual one."""
        from ..measurement.activation_patching import answer_difference, first_alpha

        if self.answer is not None and self.instead is not None:
            return {"metric": answer_difference(subject, self.answer, self.instead)}
        return {"metric": first_alpha()} if self.sink else {}


def patch(
    model: options.Model,
    prompts: Prompts,
    what: What = What(),
    loading: options.Loading = options.Loading(),
    layers: Annotated[list[int], typer.Option("--layer", parser=options.whole(0))] = [],
    positions: Annotated[list[int], typer.Option("--position", parser=options.whole(0))] = [],
    out: options.TableOut = Path("figures/patch.html"),
    full: bool = False,
    force: bool = False,
) -> None:
    """Patch every activation of one run into another, of two prompts or models, and map what each restores."""
    what.check()
    prompts.check()
    with progress_bars() as progress:
        from ..measurement.activation_patching import USUAL_TEXT
        from ..measurement.patching import RESTORED
        from ..pages.page import Section, page
        from ..pages.report import PAGES, content
        from ..report.readings import short_name
        from ..report.rows import chosen_rows

        options.check_sizes(model, heads_named(what.head))
        subject = loading.subject(model)
        other = None if prompts.into is None else loading.subject(prompts.into)
        texts = prompts.text or [USUAL_TEXT] * (other is not None)
        if texts != prompts.text:
            print_line(f"without --text, both models read {USUAL_TEXT!r}")
        asked: dict[str, Any] = {"clean": prompts.clean, "corrupted": prompts.corrupted}
        if other is not None:
            if what.site is Patched.PATHS:
                raise InputError("--site paths compares two prompts of one model; leave --into out")
            asked = {"target": other, "tokens": texts}
        asked |= {"progress": progress("patching")} | prompts.metric(subject)
        table = chosen_rows(what.table(subject, **asked), layers or None, positions=positions or None)
    strongest = table.with_rows(sorted(table.records(), key=lambda row: -abs(float(row[RESTORED] or 0))))
    lead = f"Clean: {' | '.join(prompts.clean)}. Corrupted: {' | '.join(prompts.corrupted)}."
    lead = lead if other is None else f"{subject.name} into {other.name}: {' | '.join(texts)}"
    section = Section.of(table, "The share of the clean run that each place restores")
    suffix = out.suffix.lower() or ".html"
    as_page = partial(page, f"{short_name(subject.name)}: activation patching", lead, [section])
    saved = as_page if suffix in PAGES else partial(content, table, suffix)
    elsewhere = "All rows: --full. The map: the page below."
    shown = [strongest] if full else brief(_sentence(strongest), strongest, elsewhere)
    deliver(shown, (out, saved), force=force)


def _sentence(strongest: "Table") -> str:
    """The place that restores most, from rows with the strongest first."""
    from ..measurement.patching import RESTORED

    row = strongest.records()[0]
    place = ", ".join(f"{name} {row[name]}" for name in list(row)[: list(row).index(RESTORED)])
    effect = f"it restores {row[RESTORED]:.3g} of the clean run"
    return f"Of {len(strongest.frame)} places, {place} has the largest effect: {effect}."


def _receiver(name: str | None) -> "Change | None":
    """The receiver of a name such as 3.7.k; None for the logits."""
    from ..attention import sites
    from ..interventions import Change

    if name is None:
        return None
    head, _, what = name.rpartition(".")
    kinds = {"q": sites.QUERIES, "k": sites.KEYS, "v": sites.VALUES}
    if what not in kinds:
        raise InputError(f"--to takes a layer, a head, and q, k or v, such as 3.7.k; got {name!r}")
    heads: Any = {kinds[what].selector: [layer_and_head(head, "--to")]}
    return Change(kinds[what], **heads)
