"""Tables 6 and 15: without normalisation no sink."""

from .shared.rules import has_no_sink, has_sink, higher, training_fails
from .shared.study import architecture, study

EXPERIMENT = study(
    claim="Attention whose weights need not add up to one has no sink; with normalisation sigmoid attention has one.",
    arms=(
        architecture("softmax", sink=18.18, loss=3.73),
        architecture("sigmoid", sink=0.44, loss=3.70),
        architecture("sigmoid_norm", sink=30.24, loss=3.74),
        architecture("elu", sink=0.80, loss=3.69),
        architecture("elu_norm"),
        architecture("elu_kernel_norm", sink=53.65, loss=4.19),
        architecture("elu_kernel"),
        architecture("linear_norm"),
        architecture("linear", sink=0.0, loss=3.99),
        architecture("mlp_kernel_norm", sink=0.19, loss=3.85),
        architecture("mlp_kernel", sink=0.74, loss=3.91),
    ),
    rules=(
        *(
            has_no_sink(name, baseline="softmax")
            for name in ("sigmoid", "elu", "linear", "mlp_kernel", "mlp_kernel_norm")
        ),
        *(higher("softmax", than=name) for name in ("sigmoid", "elu")),
        *(higher("softmax", than=name, at_equal_loss=False) for name in ("linear", "mlp_kernel", "mlp_kernel_norm")),
        has_sink("sigmoid_norm"),
        has_sink("elu_kernel_norm"),
        higher("sigmoid_norm", than="sigmoid"),
        *(training_fails(name) for name in ("elu_norm", "elu_kernel", "linear_norm")),
    ),
    note="importance of proxy scores where weights do not add up to one; the paper reports failed trainings as a dash",
)
