"""Table 3: every position embedding makes a sink, and so does none."""

from sinkinterp.data.choices import Scale

from .shared.rules import has_sink
from .shared.study import architecture, study

EXPERIMENT = study(
    claim="The kind of position embedding does not matter: the sink comes with each of them, and without any.",
    arms=(
        architecture("no_position", sink=20.35, loss=3.81),
        architecture("sinusoidal", sink=32.73, loss=3.74),
        architecture("learned", sink=33.13, loss=3.79),
        architecture("bucket_index", sink=35.53, loss=5.45),
        architecture("t5"),
        architecture("alibi", sink=20.78, loss=3.71),
        architecture("rotary", sink=18.18, loss=3.73),
    ),
    rules=tuple(
        has_sink(name, baseline="learned")
        for name in ("no_position", "sinusoidal", "learned", "bucket_index", "t5", "alibi", "rotary")
    ),
    note="bucket_index is the released code's relative embedding, which adds the number of the bucket; t5 learns it; "
    "by the paper's metric bucket_index has a sink, since its Sink_1 is above 50%, but its position bias alone would "
    "give the first token more; "
    "the toy's first token is random, so without learned positions nothing but its missing past marks it",
    editions={Scale.TEXT: ("no_position", "learned", "alibi", "rotary")},
)
