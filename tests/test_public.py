import subprocess
import sys
from pathlib import Path

import pytest

import sinkinterp as si


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_imports_no_framework():
    heavy = run("import sys, sinkinterp; print(*{'torch', 'transformers', 'plotly', 'datasets'} & set(sys.modules))")
    assert heavy.split() == []


LIGHT = ("data.tokens", "data.choices", "data.packing", "data.texts", "files")


def test_modules_that_many_others_import_are_light():
    imports = ", ".join(f"sinkinterp.{module}" for module in LIGHT)
    heavy = run(f"import sys, {imports}; print(*{{'transformers', 'datasets', 'filelock'}} & set(sys.modules))")
    assert heavy.split() == []


def test_every_public_name_is_there_and_they_are_few():
    assert len(si.__all__) <= 21
    assert all(getattr(si, name) is not None for name in si.__all__)
    assert set(dir(si)) == {*si.__all__, "__version__", *PARTS, *GROUND}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        si.nonsense  # noqa: B018


def test_functions_are_not_hidden_by_modules_of_the_same_name():
    assert (
        run("import sinkinterp as si; si.trained, si.VARIANTS; print(callable(si.measure), callable(si.load))")
        == "True True\n"
    )


GROUND = ("checks", "errors", "files", "lazy", "seals", "spec", "table")
PARTS = sorted(path.parent.name for path in Path(si.__file__).parent.glob("*/__init__.py"))


def test_every_package_and_root_module_is_an_attribute_of_the_package_without_an_import():
    assert {"attention", "data", "measurement", "runs"} < set(PARTS)
    read = "; ".join(f"si.{part}" for part in (*PARTS, *GROUND))
    modules = run(f"import sys, sinkinterp as si; {read}; print(*sys.modules)").split()
    assert {f"sinkinterp.{part}" for part in PARTS} <= set(modules)


@pytest.mark.parametrize("first", ["sinkinterp", "transformers"])
def test_checkpoints_load_through_auto_classes_in_either_order_of_import(first, tmp_path):
    from sinkinterp.lm.model import build

    build(si.VARIANTS["k_bias"]).save_pretrained(tmp_path)
    imports = sorted(
        ("import sinkinterp", "from transformers import AutoModelForCausalLM"), key=lambda line: first not in line
    )
    load = f"AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})"
    assert run("\n".join((*imports, f"print(type({load}).__name__)"))) == "SinkForCausalLM\n"


@pytest.mark.parametrize("first", ["LlamaForCausalLM", "GPT2LMHeadModel", "AutoTokenizer"])
def test_our_type_is_known_whatever_is_imported_first_of_transformers(first):
    names = f"from transformers import {first}; from transformers import AutoConfig"
    assert run(f"import sinkinterp; {names}; print(AutoConfig.for_model('sinkinterp').model_type)") == "sinkinterp\n"
