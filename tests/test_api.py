"""The public names: the page that lists them, examples that use them, and what they refuse."""

import copy
import inspect
import pickle
import re
import tomllib
from functools import partial
from pathlib import Path
from types import FunctionType

import pytest
import torch
from refusals import refused

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.pages.report import save

ROOT = Path(__file__).parents[1]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FUNCTIONS = {name: value for name in si.__all__ if isinstance(value := getattr(si, name), FunctionType)}


def test_the_names_of_the_root_are_few_and_each_once_and_save_has_the_arguments_that_type_checkers_see():
    assert len({*si.__all__}) == len(si.__all__) <= 45 and {*dir(si)} >= {*si.__all__}
    assert len({*iv.__all__}) == len(iv.__all__) <= 25
    assert inspect.signature(si.save).parameters.keys() == inspect.signature(save).parameters.keys()


def test_the_page_of_the_interface_lists_every_public_name():
    listed = (ROOT / "docs" / "api.md").read_text().partition("## Interventions")[0]
    assert {name for name in si.__all__ if not re.search(rf"^   (\S+\.)?{name}$|`si\.{name}`", listed, re.M)} == set()


def test_every_public_name_has_an_example_that_runs():
    code = "\n".join(snippet for page in PAGES for snippet in PYTHON.findall(page.read_text()))  # test_docs runs these
    assert {name for name in si.__all__ if not re.search(rf"\bsi\.{name}\b", code)} == set()


def test_functions_are_plain_functions_and_pickle_and_copy_keep_every_name():
    assert all(type(value) in (FunctionType, type) or name in ("VARIANTS", "sites") for name, value in vars_of(si))
    for name, value in vars_of(si):
        if name not in ("VARIANTS", "sites"):
            assert pickle.loads(pickle.dumps(value)) is value is copy.copy(value), name


def vars_of(module):
    return [(name, getattr(module, name)) for name in module.__all__]


SETTINGS = ("mend", "compare")  # which look at what they are given first


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in SETTINGS])
def test_an_unknown_argument_is_a_type_error(name):
    parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        FUNCTIONS[name](*[None] * len(needed), nonsense=1)


def test_an_unknown_setting_is_refused():
    for call in (partial(si.mend, SUBJECT, "out"), partial(si.compare, SUBJECT, f"{SUBJECT}-twin", TEXT)):
        with pytest.raises(TypeError, match="'nonsense'"):
            call(nonsense=1)


def test_names_of_other_libraries_are_answered_with_the_lines_of_the_page_and_stay_errors():
    names = tomllib.loads((ROOT / "sinkinterp" / "coming_from.toml").read_text())["names"]
    page = (ROOT / "docs" / "how_to" / "coming_from.md").read_text()
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.M)) == names and len(names) <= 60
    assert not names.keys() & {*si.__all__}
    for name, hint in names.items():
        with pytest.raises(AttributeError) as error:
            getattr(si, name)
        assert str(error.value) == f"module 'sinkinterp' has no attribute {name!r}; {hint}"
        for path in re.findall(r"\bsi\.(\w+)", hint):
            assert hasattr(si, path), hint


SUBJECT, TEXT = "sinkinterp/text-softmax", "The cat sat on the mat."


@pytest.fixture(scope="module")
def subject():
    return si.load(SUBJECT)


GUESSED = {  # what was once guessed: each is an error now
    "an edit in words": lambda s: si.measure(s, TEXT, edits="ZeroKeyBias"),
    "the word of a kernel": lambda s: si.PatchNormalization("softmax_p0.1"),
    "a head as a pair": lambda s: si.PatchNormalization(Sigmoid(), heads=(1, 2)),
    "a head by a name": lambda s: si.PatchNormalization(Sigmoid(), heads="1.2"),
    "numbers of heads": lambda s: si.attention_map(s, TEXT, layers=[1], heads=[1]),
    "a site in a word": lambda s: si.activation_patching(s, TEXT, TEXT, site="resid_post"),
    "two models in place of prompts": lambda s: si.activation_patching(s, s, TEXT),
    "a word for a variant": lambda s: si.trained("no_sink"),
}


@pytest.mark.parametrize("call", GUESSED.values(), ids=GUESSED)
def test_what_is_not_in_the_documents_is_an_error(call, subject):
    refused(partial(call, subject))


def test_no_value_is_called_or_answers_to_a_name_that_its_class_lacks(subject):
    for value in (subject, si.measure(subject, TEXT), si.SwapPositions(0, 4), si.VARIANTS):
        assert not callable(value) and not hasattr(type(value), "__getattr__"), value


def test_a_module_holds_its_own_names_alone():
    with pytest.raises(ImportError):
        exec("from sinkinterp.files import heads")
    with pytest.raises(ImportError):
        exec("from sinkinterp import experiment_names")


@pytest.mark.parametrize("given", [{}, {"layers": [1]}, {"heads": [(1, 0)]}])
def test_heads_and_layers_choose_the_same_for_edits_and_maps(given, subject):
    changed = si.measure(subject, TEXT, edits=iv.ChangeOutputs(iv.Zero(), **given))
    assert torch.isfinite(changed.importance).all() and si.attention_map(subject, TEXT, **given).data
    refused(partial(si.attention_map, subject, TEXT, layers=[1], heads=[(1, 0)]), "heads")
