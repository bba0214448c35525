"""Section 7.2 and Figure 7 (left): a model with norms after its branches has a sink too."""

from .shared.rules import has_sink, not_asked
from .shared.study import architecture, study

EXPERIMENT = study(
    claim="Where the norms stand does not matter: with norms after the branches the sink is still there.",
    arms=(architecture("softmax", "pre_norm", sink=18.18, loss=3.73), architecture("post_norm", sink=13.54)),
    rules=(
        has_sink("pre_norm"),
        has_sink("post_norm", baseline="pre_norm"),
        not_asked(
            "massive activations of a post-norm model stand before its norms",
            "the first token's residual of these models is at most some five times as long as the others', where a "
            "massive activation makes it hundreds of times as long",
        ),
    ),
)
