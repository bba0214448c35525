import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

import sinkinterp as si


def run(code: str, *words: str) -> str:
    command = [sys.executable, "-W", "error", "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


LIGHT = {  # what is imported, and what that may not bring along
    "sinkinterp": {"torch", "transformers", "plotly", "datasets"},
    "sinkinterp.cli.main": {"torch", "transformers", "pandas"},  # a wrong option is refused in a second
    "sinkinterp.runs.workers": {"torch", "transformers"},  # a worker looks for its parent before it imports them
    ", ".join(f"sinkinterp.data.{name}" for name in ("tokens", "choices", "packing", "texts")): {
        *("transformers", "datasets", "filelock")
    },
}


@pytest.mark.parametrize("imported", LIGHT)
def test_an_import_brings_no_heavy_library_along(imported):
    assert run(f"import sys, {imported}; print(*{LIGHT[imported]} & set(sys.modules))").split() == []


FORKS = """
import os, sys, accelerate, torch._dynamo, torch.distributed.tensor  # which all children would import
for code in sys.argv[1:]:
    sys.stdout.flush()
    child = os.fork()
    if not child:
        exec(code)
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_our_types_and_functions_are_known_whatever_is_imported_first(tmp_path):
    """Each of these begins in a process that has imported torch, and neither us nor transformers."""
    from sinkinterp._experiments.shared.tasks import Limited

    from sinkinterp.data.packing import PackedText
    from sinkinterp.data.tokenizers import ByteBPE
    from sinkinterp.files import seal
    from sinkinterp.lm.model import build

    build(si.VARIANTS["k_bias"]).save_pretrained(tmp_path)
    data = PackedText(tokenizer=ByteBPE(300), length=11)
    on_text = si.Recipe(model=replace(si.VARIANTS["softmax"], vocab=300), data=data)
    recipes = {tmp_path / "text": on_text, tmp_path / "toy": si.Recipe(model=si.VARIANTS["softmax"], data=Limited(7))}
    for folder, recipe in recipes.items():
        folder.mkdir()
        (folder / "recipe.json").write_text(json.dumps(recipe.to_dict()))
        seal(folder)
    ours, theirs = "import sinkinterp.lm.model", "from transformers import AutoModelForCausalLM"
    load = f"print(type(AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})).__name__)"
    of_type = "from transformers import AutoConfig; print(AutoConfig.for_model('sinkinterp').model_type)"
    read = "from pathlib import Path; from sinkinterp.train.recipe import recipe_in; print(recipe_in(Path({!r})).key())"
    of_functions = "import sinkinterp as si; si.trained, si.VARIANTS; print(callable(si.measure), callable(si.load))"
    said = {
        f"{ours}; {theirs}; {load}": "SinkForCausalLM",
        f"{theirs}; {ours}; {load}": "SinkForCausalLM",
        f"{ours}; from transformers import AutoTokenizer; {of_type}": "sinkinterp",
        **{read.format(str(folder)): recipe.key() for folder, recipe in recipes.items()},
        of_functions: "True True",  # no module hides the function of its name
    }
    assert run(FORKS, *said).splitlines() == [*said.values()]


def test_nnsight_which_gives_every_object_a_save_leaves_ours():
    import nnsight  # noqa: F401  it changes `object`

    assert hasattr(object(), "save") and si.save.__module__ == "sinkinterp"
