"""The commands that find causes: why heads look at the first token, and which activations carry a behaviour."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from ..checks import InputError, both_or_none, refusing
from ..data.progress import progress_bars
from . import options
from .options import Head, Loading, LoadingIn, Outputs, TableOutputs, TextsOrPrompt, option
from .terminal import brief, deliver, say

if TYPE_CHECKING:
    from ..backends.subject import Subject
    from ..interventions.changes import Change
    from ..report.explanation import CutMap, Explanation
    from ..table import Table

Answer = Annotated[str | None, option("The right next token, such as ' Paris'; with --instead.", metavar="TOKEN")]
Instead = Annotated[str | None, option("Another next token, such as ' Rome'.", metavar="TOKEN")]


def explain(
    model: options.Model,
    *,
    head: options.Heads = [],
    place: Annotated[bool, option("Say if the sink is bound to its place or to BOS instead.", "--place")] = False,
    answer: Answer = None,
    instead: Instead = None,
    given: TextsOrPrompt,
    loading: Loading,
    full: options.Full = False,
    outputs: Outputs,
) -> None:
    """Say why heads look at the first token: which parts make the sink, and what cuts remove.

    Example: sinkinterp explain smollm2 --head 18.7 --out explained.html

    By default those are the three heads with the strongest sink.
    """
    both_or_none(answer, instead, "--answer and --instead")
    if place and (head or answer):
        raise InputError("--place asks about the sink of all heads; leave --head, --answer and --instead out")
    given.check()
    outputs.check(*given.files)
    say(f"loading {model}")
    with progress_bars(in_lines=True) as progress:
        from ..measurement.explaining import cut_maps, explain as explain_heads
        from ..measurement.place_or_token import SHORTEST, check_default_places, place_or_token
        from ..pages.page import Section, page
        from ..report.readings import short_name

        given.check_files()
        longer = f"use --length {SHORTEST}, and longer texts if they have less"
        if place and given.length is not None:
            check_default_places(given.length, longer)
        options.check_sizes(model, head, given.length)
        subject = loading.subject(model)
        token_set, seed = given.token_set(subject, model, 64, 32, progress("reading docstrings")), given.seed or 0
        if place:
            check_default_places(token_set.tokens.shape[1], longer)
            bound = place_or_token(subject, token_set, seed=seed, progress=progress("masking"))
            section = Section(bound.title, bound.note, [bound.plot()], [bound])
            of_place = partial(page, f"{short_name(subject.name)}: place or token", [bound.title], [section])
            deliver([bound], (outputs.save, bound.to_dict), (outputs.out, of_place), form=outputs.format)
            return
        asked: dict[str, Any] = {"head": head or None, "answer": answer, "instead": instead, "seed": seed}
        found = explain_heads(subject, token_set, **asked, progress=progress("explaining"))
        maps = {} if outputs.out is None else cut_maps(subject, token_set, found, progress)
    tables = [replace(table, note=table.note.removeprefix(found.note).lstrip("; ")) for table in found.tables()]
    full_tables = tables if full or outputs.format else ()
    shown = brief(found.sentence, _of_strongest(found), found.note, full=full_tables)
    title = f"{short_name(subject.name)}: why heads look at {found.target}"
    files = outputs.answer_files(found.sentence, found.tables(), partial(_explained_page, title, found, maps))
    deliver(shown, *files, form=outputs.format)


def _explained_page(title: str, found: "Explanation", maps: "Mapping[tuple[int, int], list[CutMap]]") -> str:
    """The page of an explanation: a figure for each head, and its tables."""
    from ..pages.page import Section, page

    heads = [(score.layer, score.head) for score in found.strongest_first]
    sections = [Section(f"Head {layer}.{h}", "", [found.plot((layer, h), maps[layer, h])]) for layer, h in heads]
    sections += [Section(table.title, table.note, [], [table]) for table in found.tables()]
    said = found.sentence.split("\n")  # a line for each head, then of the path; the figures show the other heads
    return page(title, [said[0], *said[len(heads) :]], sections)


def _of_strongest(answer: "Explanation") -> "Table":
    """The parts of the head with the strongest sink."""
    from ..table import HEAD, LAYER

    strongest = answer.strongest_first[0]
    parts = answer.parts().where(**{LAYER: strongest.layer, HEAD: strongest.head})
    return replace(parts, title=f"Which parts make head {strongest.name} look at {answer.target}?")


class Site(StrEnum):
    """What is patched at every place of the map."""

    RESIDUAL = "residual"
    FEED_FORWARD = "feed-forward"
    ATTENTION = "attention"
    HEADS = "heads"
    EDGES = "edges"
    PATHS = "paths"


SITES = "What is patched: residual, feed-forward, attention, heads, edges (the weights of --head) or paths."
To = Annotated[str | None, option("Where a path ends: 3.7.q, 3.2.k, 3.2.v; default: logits.", metavar="HEAD.q")]


@dataclass(frozen=True)
class What:
    """The places that `patch` patches: all places of a site, or the senders of a path."""

    site: Annotated[Site, option(SITES, metavar="SITE", show_default=False)] = Site.RESIDUAL
    head: options.Heads = field(default_factory=list)
    to: To = None
    first_order: Annotated[bool, option("Add what gradients estimate, and its error.", "--first-order")] = False
    direct: Annotated[bool, option("With --answer: add what is written into its logit.", "--direct")] = False

    @refusing
    def check(self) -> Iterator[str]:
        """Raises InputError for options that do not go with the site."""
        if self.site is Site.EDGES and not self.head:
            yield "--site edges patches every weight of some heads; name them, such as --head 3.7"
        if self.head and self.site not in (Site.HEADS, Site.EDGES):
            yield "--head goes with --site heads or --site edges; a path ends at --to"
        if self.to is not None and self.site is not Site.PATHS:
            yield "--to says where a path ends; add --site paths"
        if self.direct and self.site not in (Site.HEADS, Site.ATTENTION, Site.FEED_FORWARD):
            yield "--direct goes with --site heads, attention or feed-forward, and with --answer"
        if self.first_order and self.site in (Site.EDGES, Site.PATHS):
            yield f"--first-order estimates no {self.site}"

    def table(self, subject: "Subject", **measured: Any) -> "Table":
        """The share that each place restores: what `activation_patching` takes of prompts and answers is `measured`."""
        from ..measurement.activation_patching import activation_patching, twin_patching
        from ..measurement.path_patching import path_patching

        if self.site is Site.PATHS:
            return path_patching(subject, **measured, receiver=_receiver(self.to))
        site, by = self._change()
        estimates: dict[str, Any] = {"first_order": self.first_order, "direct": self.direct}
        patching = twin_patching if "target" in measured else activation_patching
        return patching(subject, **measured, site=site, by=by, **estimates)

    def _change(self) -> tuple["Change", tuple[str, ...]]:
        """The site, and the axes of its map."""
        from ..attention import sites
        from ..interventions import Change, ChangeMLP, ChangeOutputs, ChangeResidual

        by_position, by_head, heads = ("layer", "position"), ("layer", "head"), self.head or None
        kinds = {
            Site.RESIDUAL: (ChangeResidual(), by_position),
            Site.FEED_FORWARD: (ChangeMLP(), by_position),
            Site.ATTENTION: (ChangeOutputs(), by_position),
            Site.HEADS: (ChangeOutputs(heads=heads), by_head),
            Site.EDGES: (Change(sites.PATTERN, heads=heads), (*by_head, "position", "key")),
        }
        return kinds[self.site]


Clean = Annotated[list[str], option("A prompt with the behaviour; repeatable.", metavar="TEXT")]
Corrupted = Annotated[list[str], option("One with other words, of as many tokens.", metavar="TEXT")]
OfBoth = Annotated[list[str], option("With --into: what both models read; repeatable.", metavar="TEXT")]


@dataclass(frozen=True)
class Compared:
    """The two runs that are compared, and what is measured of them."""

    clean: Clean = field(default_factory=list)
    corrupted: Corrupted = field(default_factory=list)
    into: Annotated[str | None, option("Patch MODEL into this one, of the same shape.", metavar="TWIN")] = None
    prompt: OfBoth = field(default_factory=list)
    answer: Answer = None
    instead: Instead = None
    sink: Annotated[bool, option("Measure the attention to the first token; default: KL divergence.", "--sink")] = False

    def check(self, is_path: bool) -> None:
        """Raises InputError unless two prompts or two models are compared, and for two metrics at once."""
        if [bool(self.clean), bool(self.corrupted), bool(self.into)] not in ([True, True, False], [False, False, True]):
            two = "two prompts, `sinkinterp patch MODEL --clean 'The cat sat' --corrupted 'The dog sat'`"
            raise InputError(f"write {two}, or two models, `sinkinterp patch MODEL --into TWIN --prompt 'The cat sat'`")
        if self.into is not None and is_path:
            raise InputError("--site paths compares two prompts of one model; leave --into out")
        if self.prompt and self.into is None:
            raise InputError("--prompt is the text of two models; add --into TWIN, or leave it out")
        both_or_none(self.answer, self.instead, "--answer and --instead", ", or --sink")
        if self.sink and self.answer is not None:
            raise InputError("--answer and --instead are a metric themselves; leave --sink out")

    def asked(self, subject: "Subject", loading: Loading) -> dict[str, Any]:
        """What `activation_patching`, or with --into `twin_patching`, takes of prompts, models and answers."""
        from ..measurement.activation_patching import USUAL_TEXT
        from ..measurement.patching import answer_difference, first_alpha

        asked: dict[str, Any] = {"clean": self.clean, "corrupted": self.corrupted}
        if self.into is not None:
            asked = {"target": loading.subject(self.into), "tokens": self.prompt or [USUAL_TEXT]}
        if self.answer is not None and self.instead is not None:
            return asked | {"metric": answer_difference(subject, self.answer, self.instead)}
        return asked | ({"metric": first_alpha()} if self.sink else {})


def patch(
    model: options.Model,
    *,
    compared: Compared,
    what: What,
    layer: options.Layers = [],
    position: options.Positions = [],
    loading: LoadingIn,
    full: options.Full = False,
    outputs: TableOutputs,
) -> None:
    """Patch activations of one run into another, and map what each restores.

    Example: sinkinterp patch smollm2 --clean "The cat sat" --corrupted "The dog sat" --out patch.html
    """
    what.check()
    compared.check(what.site is Site.PATHS)
    if compared.sink and what.first_order:
        raise InputError("--first-order differentiates logits, and --sink reads attention; leave one of them out")
    outputs.check()
    say(f"loading {model}{'' if compared.into is None else f' and {compared.into}'}")
    with progress_bars(in_lines=True) as progress:
        from ..measurement.activation_patching import RESTORED
        from ..pages.page import Section, page
        from ..report.readings import short_name
        from ..report.report import chosen_rows

        options.check_sizes(model, what.head, layers=layer)
        subject = loading.subject(model)
        asked = compared.asked(subject, loading)
        every = what.table(subject, **asked, progress=progress("patching"))
        table = chosen_rows(every, layer or None, positions=position or None)
    strongest = table.with_rows(sorted(table.records(), key=lambda row: -abs(float(row[RESTORED] or 0))))
    lead = f"Clean: {' | '.join(compared.clean)}. Corrupted: {' | '.join(compared.corrupted)}."
    if compared.into is not None:
        lead = f"{subject.name} into {asked['target'].name}: {' | '.join(asked['tokens'])}"
    section = Section.of(table, "The share of the clean run that each place restores")
    as_page = partial(page, f"{short_name(subject.name)}: activation patching", lead, [section])
    shown = brief(_sentence(strongest), strongest, full=[strongest] if full or outputs.format else ())
    deliver(shown, *outputs.table_files(table, as_page), form=outputs.format)


def _sentence(strongest: "Table") -> str:
    """The place that restores most, from rows with the strongest first."""
    from ..measurement.activation_patching import RESTORED

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
    heads: Any = {kinds[what].selector: [Head.of(head, "--to")]}
    return Change(kinds[what], **heads)
