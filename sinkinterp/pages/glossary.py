"""The words that pages use, explained in plain English."""

from html import escape

GLOSSARY = {
    "attention, query, key": (
        "Every token (the query) takes information from the tokens up to its own (the keys). The attention weights of "
        "a query say how much it takes from each key. A head is one such set of weights; a layer has several heads."
    ),
    "importance": (
        "How much attention a token receives: the mean weight that the queries which can see it give it. 0.5 means: "
        "half of their attention."
    ),
    "sink": (
        "A token that receives much attention although it says little. In most language models it is the first token."
    ),
    "position": "The place of a token. Positions count from 0 on all pages: position 0 is the first token.",
    "Sink_1, alpha_1, p1": (
        "Names of the paper for the first token. alpha_1 is its importance. Sink_1 is the share of heads (over all "
        "texts and layers) in which alpha_1 is larger than epsilon. p1 is the embedding of its position."
    ),
    "epsilon": "The threshold: a head has a sink where the importance of a token is larger than epsilon, mostly 0.3.",
    "null": (
        "What the same number would be if every query gave all keys the same attention (uniform attention). A sink is "
        "only what is larger than its null: in short texts the first token receives much attention in any case."
    ),
    "slot, *": (
        "A column of attention that belongs to no token, such as a learned key k* or a sink logit. A model that has "
        "one can put there the attention that it does not need. Sink_* and alpha_* are its numbers."
    ),
    "proxy score": (
        "Some models have weights that do not sum to one, such as sigmoid attention, or weights below zero. Their "
        "proxy score is |w| / sum |w|: the share of a key in all weights of its query."
    ),
    "interval": (
        "95% bootstrap interval: how much a mean over texts would change with other texts. One text has no interval."
    ),
    "massive activation": "An entry of the residual stream that is far larger than the usual ones, often at the sink.",
}


def glossary() -> str:
    """The words and what they mean, folded, as HTML."""
    entries = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in GLOSSARY.items())
    summary = "<summary>What do these words mean?</summary>"
    return f'<details class="glossary" id="glossary">{summary}<dl>{entries}</dl></details>'
