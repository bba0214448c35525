"""Every named recipe, and how a variant of the architecture is set into one."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from ..data.backcopy import BigramBackcopy
from ..data.packing import PackedText
from ..data.sources import Embedded, PythonCode, Source, Texts
from ..data.tokenisers import ByteBPE
from ..errors import InputError
from ..lm.ffn import GatedFFN
from ..lm.model import LMSpec
from ..lm.variants import BASE, VARIANTS, variants
from ..spec import Spec
from .objectives import PrefixLM
from .recipe import Recipe, Task, shown_ahead
from .schedules import ConstantRate, CosineRate
from .weight_decay import Everything


@dataclass(frozen=True)
class YourText(Spec):
    """The place of a text that the user has to bring, in tokens of `vocab` symbols."""

    vocab: int = 50432
    length: int = 2048

    def prepare(self, cache: Path, on_progress: Callable[[int, int], None] = lambda done, of: None) -> Task:
        raise InputError(
            f"this recipe trains on a text of your own, in blocks of {self.length} tokens of a tokenizer with up to "
            f"{self.vocab} symbols; name it with --text"
        )


def sized(vocab: int, n_ctx: int, n_layers: int, d_model: int, n_heads: int, width: int) -> LMSpec:
    """Llama at the given sizes; `width` is the feed-forward layers'."""
    return LMSpec(
        vocab=vocab, n_ctx=n_ctx, n_layers=n_layers, d_model=d_model, n_heads=n_heads, ffn=GatedFFN(width=width)
    )  # fmt: skip


_PAPER = Recipe(  # Gu et al. 2025, section 4, with the constant rate of the released files; the paper says cosine
    model=sized(vocab=50432, n_ctx=2048, n_layers=10, d_model=768, n_heads=8, width=1536), data=YourText(),
    steps=20_000, batch=512, micro_batch=16, lr=4e-4, schedule=ConstantRate(), warmup=100, weight_decay=0.1,
    decay=Everything(), bf16=True, watch_every=500, save_every=1000,
)  # fmt: skip

NAMED: dict[str, Source] = {"embedded": Embedded(), "code": PythonCode()}
RECIPES: dict[str, Recipe] = {
    "demo": Recipe(model=BASE),
    "small": Recipe(
        model=replace(sized(64, 64, n_layers=4, d_model=128, n_heads=4, width=384), position=BASE.position),
        data=BigramBackcopy(length=64), steps=2000, batch=32, lr=3e-3, weight_decay=0.1,
    ),
    "text": Recipe(  # docstrings, --text embedded, make no sink at this size: experiments/LOG.md
        model=sized(1024, 128, n_layers=3, d_model=64, n_heads=1, width=192),
        data=PackedText(source=PythonCode(), length=128, bos=True),
        steps=24_000, batch=8, lr=1e-2, schedule=CosineRate(), weight_decay=0.1, watch_every=500, save_every=2000,
    ),
    "paper-60m": _PAPER,
    "paper-1b": replace(
        _PAPER, model=sized(vocab=50432, n_ctx=2048, n_layers=22, d_model=2048, n_heads=16, width=5632),
        steps=40_000, micro_batch=4,
    ),
}  # fmt: skip


def on_text(recipe: Recipe, source: str) -> Recipe:
    """The recipe on texts, packed to its context, in byte-level BPE as large as its vocabulary, or 1,024 symbols.

    `source` is "embedded", "code" (Python's standard library), or what `data.corpora.texts_of` reads: a file, a folder,
    the name of a dataset. Another tokenizer is set with `data.tokenizer=Pretrained` and `data.tokenizer.source=NAME`.
    """
    vocab = max(recipe.model.vocab, ByteBPE().vocab)
    data = PackedText(
        source=NAMED.get(source) or Texts(source), tokenizer=ByteBPE(vocab), length=recipe.model.n_ctx,
        bos=getattr(recipe.data, "bos", PackedText.bos),
    )  # fmt: skip
    return replace(recipe, model=replace(recipe.model, vocab=vocab), data=data)


def with_variant(recipe: Recipe, variant: LMSpec) -> Recipe:
    """The recipe with everything in its model changed that the variant changes in BASE; its sizes stay.

    Variants that depend on the context's length are taken at the recipe's. A prefix mask takes its objective along, the
    loss from the prefix on.
    """
    at_length = variants(replace(BASE, n_ctx=recipe.model.n_ctx))
    variant = next((at_length[name] for name, spec in variants(BASE).items() if spec == variant), variant)
    changed = {f.name: getattr(variant, f.name) for f in fields(variant)}
    changed = {name: value for name, value in changed.items() if value != getattr(BASE, name, None) and name != "n_ctx"}
    width = getattr(recipe.model.ffn, "width", None)
    if width is not None and hasattr(changed.get("ffn"), "width"):
        changed["ffn"] = replace(changed["ffn"], width=width)
    last = shown_ahead(variant.attention.mask, recipe.data.length)
    objective = PrefixLM(last + 1) if last else recipe.objective
    return replace(recipe, model=replace(recipe.model, **changed), objective=objective)


DEMO_TWINS = ("softmax", "sigmoid", "k_bias")  # the variants that the demo trains on one task
DEMO_STEPS = 1500
DEMO_SEQUENCES = 512  # held-out sequences that the demo measures its models on
DEMO_EPSILON = 0.3


def demo_recipe(variant: str, seed: int = 0, steps: int = DEMO_STEPS) -> Recipe:
    """How the demo trains one of its twins."""
    return Recipe(model=VARIANTS[variant], seed=seed, steps=steps)
