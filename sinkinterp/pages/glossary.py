"""Words that a reader may not know. Each is explained where it first stands on a page, and at the end of every page."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Term:
    """What a word means, and the other forms in which it stands on pages."""

    meaning: str
    forms: tuple[str, ...] = ()


GLOSSARY: Mapping[str, Term] = {
    "attention": Term(
        "Every token (the query) takes information from the tokens up to its own (the keys). The attention weights of "
        "a query say how much it takes from each key. A head is one such set of weights; a layer has several heads."
    ),
    "importance": Term(
        "How much attention a token receives: the mean weight that the queries which can see it give it. 0.5 means: "
        "half of their attention."
    ),
    "sink": Term(
        "A token that receives much attention although it says little. In most language models it is the first token.",
        ("sinks", "attention sink", "attention sinks"),
    ),
    "position": Term(
        "The place of a token. Positions count from 0 on all pages: position 0 is the first token.", ("positions",)
    ),
    "Sink_1": Term(
        "The paper's measure of the sink: the share of heads (over all texts and layers) that give the first token "
        "more than epsilon of their attention."
    ),
    "alpha_1": Term(
        "The paper's name for the importance of the first token: the mean attention that it receives. 0.5 means: half "
        "of the attention of those that see it."
    ),
    "p1": Term("The embedding of the first position, where a model adds a learned vector for each position.", ("p_1",)),
    "epsilon": Term(
        "The threshold: a head has a sink where the importance of a token is larger than epsilon, mostly 0.3."
    ),
    "null": Term(
        "What the same number would be if every query gave all keys the same attention (uniform attention). A sink is "
        "only what is larger than its null: in short texts the first token receives much attention in any case.",
        ("nulls", "uniform attention", "uniform"),
    ),
    "slot": Term(
        "A column of attention that belongs to no token, such as a learned key or a sink logit. A model that has one "
        "can put there the attention that it does not need.",
        ("slots",),
    ),
    "k*": Term("A learned key that belongs to no token: the slot of a model with K biases. Its value v* is zero."),
    "Sink_*": Term("The share of heads that give the slot more than epsilon of their attention."),
    "alpha_*": Term("The mean attention that the slot receives."),
    "K biases": Term(
        "A learned key, without a value, that every query can look at: a place for attention that it does not need.",
        ("K bias", "k_bias"),
    ),
    "proxy score": Term(
        "Some models have weights that do not sum to one, such as sigmoid attention, or weights below zero. Their "
        "proxy score is |w| / sum |w|: the share of a key in all weights of its query.",
        ("proxy scores",),
    ),
    "off-sequence mass": Term(
        "The part of its attention that a query gives to no token, but to a slot. Without slots it is 0."
    ),
    "interval": Term(
        "95% bootstrap interval: how much a mean over texts would change with other texts. One text has no interval. "
        "It stands in brackets, as in 0.48 [0.46, 0.49].",
        ("intervals",),
    ),
    "residual": Term(
        "The vector that a model keeps for every token. Each layer reads it and adds to it; after the last layer it "
        "says what comes next.",
        ("residuals", "residual stream"),
    ),
    "massive activation": Term(
        "An entry of the residual stream that is far larger than the usual ones, often at the sink.",
        ("massive activations", "massive entries", "massive"),
    ),
    "Bigram-Backcopy": Term(
        "A made-up task in which small models grow a sink within a minute: every token depends on the one before it, "
        "but after a trigger token the token before the trigger comes again."
    ),
    "BOS": Term("A special token that marks the beginning of a text. Some models are given one, others are not."),
    "nats": Term(
        "The unit of losses: 1 nat more means that the right next token was held 2.7 times less probable.",
        ("nats per token", "nats a token"),
    ),
    "perplexity": Term("exp(loss): among how many equally probable tokens the model hesitates on average."),
    "T": Term("The number of tokens of each text that was measured."),
}


def glossary() -> str:
    """The words and what they mean, folded, as HTML. `shared/terms.js` reads it to explain words on the page."""
    entries = "".join(
        f'<dt data-words="{escape("|".join((word, *term.forms)))}">{escape(word)}</dt><dd>{escape(term.meaning)}</dd>'
        for word, term in GLOSSARY.items()
    )
    summary = "<summary>What do these words mean?</summary>"
    return f'<details class="glossary" id="glossary">{summary}<dl>{entries}</dl></details>'
