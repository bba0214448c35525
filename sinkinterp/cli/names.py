"""Names that help texts and completion show, without the seconds that importing torch takes. A test compares them."""

from collections.abc import Callable, Sequence

VARIANTS = (
    "llama", "softmax", "no_position", "sinusoidal", "alibi", "t5", "bucket_index", "relu", "gelu", "swish", "reglu",
    "geglu", "post_norm", "heads_2", "heads_4", "heads_8", "heads_added", "written_init", "sink_token", "kv_bias",
    "kv_bias_shared", "k_bias", "k_bias_shared", "v_bias", "v_bias_shared", "k_bias_e1", "k_bias_5e1", "k_bias_20e1",
    "k_bias_even", "k_bias_5even", "k_bias_20even", "k_bias_1d", "k_bias_2d", "k_bias_4d", "k_bias_8d", "alpha_2",
    "alpha_0.2", "alpha_0.1", "alpha_0.05", "softmax_p0.25", "softmax_p0.5", "softmax_p2", "sigmoid_p0.5",
    "sigmoid_p2", "sigmoid_p4", "sigmoid", "sigmoid_norm", "sigmoid_length", "elu", "elu_norm", "linear",
    "linear_norm", "elu_kernel", "elu_kernel_norm", "mlp_kernel", "mlp_kernel_norm", "off_by_one", "sink_logit",
    "gated", "softpick", "relu_attention", "qk_norm", "window", "prefix_2", "prefix_5",
)  # fmt: skip
RECIPES = ("demo", "small", "text", "paper-60m", "paper-1b")
PRESETS = ("paper", "released-open-models", "released-own-models")
BACKENDS = ("huggingface", "nnsight", "transformer_lens")
DTYPES = ("float32", "bfloat16", "float16")


def beginning(names: Callable[[], Sequence[str]] | Sequence[str]) -> Callable[[str], list[str]]:
    """Returns the completion of a shell: the names that begin as the user typed."""

    def complete(incomplete: str) -> list[str]:
        known = names() if callable(names) else names
        return [name for name in known if name.startswith(incomplete)]

    return complete


def models() -> list[str]:
    """The models that are here: those that ship, and those that `make models` made."""
    from pathlib import Path

    from ..files import cache_folder

    shipped = sorted(path.name for path in (Path(__file__).parents[1] / "checkpoints").iterdir() if path.is_dir())
    made = sorted(path.name for path in (cache_folder() / "models").glob("[!.]*") if path.is_dir())
    return [*(f"sinkinterp/{name}" for name in shipped), *(f"local/{name}" for name in made)]
