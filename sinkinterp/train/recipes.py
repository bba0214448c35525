"""Every named recipe, and functions that put a text or a variant of the architecture into one."""

from dataclasses import dataclass, replace

from ..checks import InputError, choice
from ..data.backcopy import BigramBackcopy
from ..data.packing import PackedText
from ..data.sources import Embedded, PythonCode, Repeating, Source, Texts
from ..data.tokenisers import ByteBPE
from ..lm.block import GatedFFN
from ..lm.model import LMSpec
from ..lm.variants import BASE, VARIANTS, variants
from .recipe import ConstantRate, CosineRate, Everything, PrefixLM, Recipe, shown_ahead

PACKAGES = ("torch", "transformers", "sympy", "pandas", "numpy", "networkx", "datasets", "transformer_lens")


@dataclass(frozen=True)
class YourText(Source):
    """Placeholder for the user's own text. `check` raises InputError until another source stands in its place."""

    def check(self) -> None:
        raise InputError("this recipe trains on a text of your own; name a file, a folder or a dataset: Texts(FILE)")


def sized(vocab: int, n_ctx: int, n_layers: int, d_model: int, n_heads: int, width: int) -> LMSpec:
    """Llama at the given sizes. `width` is the inner width of the feed-forward layers."""
    ffn = GatedFFN(width=width)
    return LMSpec(vocab=vocab, n_ctx=n_ctx, n_layers=n_layers, d_model=d_model, n_heads=n_heads, ffn=ffn)


_PAPER = Recipe(  # Gu et al. 2025, section 4, with the constant rate of the released files; the paper says cosine
    model=sized(vocab=50432, n_ctx=2048, n_layers=10, d_model=768, n_heads=8, width=1536),
    data=PackedText(source=YourText(), tokenizer=ByteBPE(50432), length=2048),
    steps=20_000,
    batch=512,
    micro_batch=16,
    lr=4e-4,
    schedule=ConstantRate(),
    warmup=100,
    weight_decay=0.1,
    decay=Everything(),
    bf16=True,
    watch_every=500,
    save_every=1000,
)
_SMALL = Recipe(
    model=replace(sized(64, 64, n_layers=4, d_model=128, n_heads=4, width=384), position=BASE.position),
    data=BigramBackcopy(length=64),
    steps=2000,
    batch=32,
    lr=3e-3,
    weight_decay=0.1,
)
_TEXT = Recipe(  # models of this size make no sink on docstrings, --text embedded: experiments/LOG.md
    model=sized(1024, 128, n_layers=3, d_model=64, n_heads=1, width=192),
    data=PackedText(source=PythonCode(), length=128, bos=True),
    steps=24_000,
    batch=8,
    lr=1e-2,
    schedule=CosineRate(),
    weight_decay=0.1,
    watch_every=500,
    save_every=2000,
)
_REPEATS = Recipe(  # deeper and narrower, in larger batches: the strongest sinks on text so far, experiments/LOG.md
    model=sized(1024, 64, n_layers=5, d_model=32, n_heads=1, width=96),
    data=PackedText(source=Repeating(), length=64, bos=True),
    steps=6000,
    batch=64,
    lr=2e-2,
    schedule=CosineRate(),
    warmup=300,
    weight_decay=0.1,
    watch_every=500,
    save_every=1000,
)
_WITHOUT_BOS = Recipe(  # an ordinary token comes first, and a learned position marks it: experiments/LOG.md
    model=replace(sized(8192, 256, n_layers=4, d_model=128, n_heads=2, width=384), position=BASE.position),
    data=PackedText(source=PythonCode(PACKAGES), tokenizer=ByteBPE(8192, documents=3000), length=256),
    steps=5000,
    batch=64,
    lr=6e-3,
    schedule=CosineRate(),
    warmup=200,
    weight_decay=0.3,
    bf16=True,
    watch_every=250,
    save_every=1000,
)
_PAPER_1B = replace(
    _PAPER,
    model=sized(vocab=50432, n_ctx=2048, n_layers=22, d_model=2048, n_heads=16, width=5632),
    steps=40_000,
    micro_batch=4,
)

RECIPES: dict[str, Recipe] = {
    "demo": Recipe(model=BASE),
    "small": _SMALL,
    "text": _TEXT,
    "text-repeats": _REPEATS,
    "text-without-bos": _WITHOUT_BOS,
    "paper-60m": _PAPER,
    "paper-1b": _PAPER_1B,
}


def recipe_named(name: str) -> Recipe:
    """The recipe of that name. Raises InputError, which lists all names, where there is none."""
    return choice(name, RECIPES, "recipe")


NAMED: dict[str, Source] = {"embedded": Embedded(), "code": PythonCode()}


def on_text(recipe: Recipe, source: str) -> Recipe:
    """The recipe with a text as its data, packed to the model's context, in byte-level BPE.

    `source` is "embedded", "code" (Python's standard library), or what `data.texts.texts_of` reads: a file, a folder
    or the name of a dataset. The tokenizer has the symbols of the recipe's vocabulary, and at least 1,024. To use
    another one, set `data.tokenizer=Pretrained` and `data.tokenizer.source=NAME`.
    """
    vocab = max(recipe.model.vocab, ByteBPE().vocab)
    text = NAMED.get(source) or Texts(source)
    bos = getattr(recipe.data, "bos", PackedText.bos)
    data = PackedText(source=text, tokenizer=ByteBPE(vocab), length=recipe.model.n_ctx, bos=bos)
    return replace(recipe, model=replace(recipe.model, vocab=vocab), data=data)


def with_variant(recipe: Recipe, name: str) -> Recipe:
    """The recipe with the architecture of that name in place of its own, at the recipe's sizes.

    "softmax" leaves the architecture as it is. With a prefix mask the loss begins after the prefix. Raises InputError
    for a name that no architecture has.
    """
    model = choice(name, variants(recipe.model), "variant")
    last = shown_ahead(model.attention.mask, recipe.data.length)
    return replace(recipe, model=model, objective=PrefixLM(last + 1) if last else recipe.objective)


DEMO_TWINS = ("softmax", "sigmoid", "k_bias")  # the variants that the demo trains on one task
DEMO_STEPS = 1500
DEMO_SEQUENCES = 512  # held-out sequences that the demo measures its models on
DEMO_EPSILON = 0.3


def demo_recipe(variant: str, seed: int = 0, steps: int = DEMO_STEPS) -> Recipe:
    """How the demo trains one of its twins."""
    return Recipe(model=VARIANTS[variant], seed=seed, steps=steps)
