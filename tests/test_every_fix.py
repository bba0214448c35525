"""Every fix that a message names works when it is typed; the table is `fixes.py`."""

# ruff: noqa: F401  the lines of the table name them
import ast
import copy
import json
import re
import shlex
import threading
import weakref
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from backends.encoder_decoders import save_bart
from backends.own_modules import NanoGPT
from backends.zoo import model_of, subject_of, tokens_of
from fixes import FOLLOWED, NOT_FIXES, OF_A_PERSON, TYPED
from refusals import refused
from torch import nn
from transformers import StaticCache
from typer.testing import CliRunner

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.applications.mend import check_trained, mend_recipe
from sinkinterp.attention import kernels
from sinkinterp.attention.masks import Prefix
from sinkinterp.backends import adapters, encoder
from sinkinterp.checks import InputError
from sinkinterp.cli.main import app
from sinkinterp.data.tokens import TokenSet
from sinkinterp.files import check_writable
from sinkinterp.interventions.attention_layers import KeepHeaviest
from sinkinterp.lm import attention
from sinkinterp.lm.attention import LogitSlot
from sinkinterp.lm.model import SinkConfig, SinkForCausalLM
from sinkinterp.measurement.patching import first_alpha, logit_difference
from sinkinterp.metrics import estimates
from sinkinterp.metrics.metric import NEXT_TOKEN_LOSS, LogitsMetric
from sinkinterp.table import Table
from tools.families import tiny_model

T, LONG = tokens_of(11)[:2], tokens_of(71)
PADDED = torch.cat((torch.zeros(2, 3, dtype=torch.long), T.clamp(min=1)), 1)
SHORT = {
    "OURS": "sinkinterp/demo-softmax", "TEXTUAL": "sinkinterp/text-softmax", "TWIN": "sinkinterp/text-sigmoid",
    "PROMPTS": "--clean 'Return the first item.' --corrupted 'Return the last item.'", "one-two": "'one two three'",
}  # fmt: skip
HEAVY = KeepHeaviest(4, 2)
LISTS = [[5, 7, 9, 11, 13, 2], [3, 4, 6, 8]]


def SET(call):
    return call.with_pattern(call.pattern())


class World:
    """What the lines of the table name."""

    def __init__(self, tmp):
        self.tmp, self.llama, self.oss = tmp, subject_of("llama"), subject_of("gpt-oss with sink logits")
        self.jamba, self.reader = subject_of("jamba with mamba layers"), si.load("sinkinterp/text-softmax")
        self.m, self.ours = model_of("llama"), self.reader.model
        self.m.config.pad_token_id = 0
        self.report = si.measure(self.llama, T)
        self.full = si.measure(self.llama, T, instruments=si.measurement.instruments.ALL)
        weights = torch.full((2, 6, 6), 0.5).tril().softmax(-1).tril()
        self.stacked = (weights / weights.sum(-1, keepdim=True)).expand(3, 2, 6, 6)
        self.attentions = tuple(self.stacked[:, None])
        self.ANSWERS, self.FAR = logit_difference(3, 4), iv.ChangeResidual(iv.Scale(2.0), layers=[1], positions=[7])
        self.unseen = self.stacked[:1, None].clone()
        self.unseen[..., 4:] = 0

    @cached_property
    def sharing(self):
        return si.load(tiny_model("gemma4_text"))

    @cached_property
    def laurel(self):
        return si.load(tiny_model("gemma3n_text"))

    @cached_property
    def bridged(self):
        return subject_of("gpt2", "transformer_lens")

    @cached_property
    def seen(self):
        spec = si.VARIANTS["softmax"]
        spec = replace(spec, vocab=7, attention=replace(spec.attention, mask=Prefix(15)))
        return SinkForCausalLM(SinkConfig(spec=spec.to_dict())).eval()

    @cached_property
    def complex_report(self):
        return replace(self.report, extras={"a": torch.ones(2, dtype=torch.complex64)})

    def written_by(self, model, **how):
        model.set_attn_implementation("eager")
        try:
            return model.generate(T, max_new_tokens=3, output_attentions=True, return_dict_in_generate=True, **how)
        finally:
            model.set_attn_implementation("sdpa")

    def cli(self, line):
        for short, words in SHORT.items():
            line = line.replace(short, words)
        drawn = " --drawn random --length 11 --sequences 2" * (
            line.startswith("measure sinkinterp/demo") and "length" not in line
        )
        result = CliRunner().invoke(app, shlex.split(line + drawn))
        if result.exit_code:
            raise InputError(" ".join(result.output.split()))

    def model(self):
        return model_of("llama")

    def module(self):
        torch.manual_seed(0)
        return NanoGPT()

    @property
    def folder(self):
        model_of("llama").save_pretrained(self.tmp / "llama")
        return self.tmp / "llama"

    def with_config(self, folder, **more):
        file = folder / "config.json"
        config = json.loads(file.read_text()) | more
        file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
        return folder

    def written(self, name, content):
        (self.tmp / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return self.tmp / name

    def rows_of(self, row):
        return self.written("rows.jsonl", json.dumps(row) + "\n")

    def bart(self):
        save_bart(self.tmp / "bart")
        (self.tmp / "bart" / "tokenizer.json").unlink(missing_ok=True)
        return self.tmp / "bart"

    def inside(self, act, edit=SET):
        with si.patched(self.m, edit), torch.no_grad():
            return act(self.m)

    def in_thread(self, act):
        errors = []

        def run():
            try:
                act()
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        for error in errors:
            raise error

    def crossed(self, first, second):
        first.__enter__()
        second.__enter__()
        try:
            first.__exit__(None, None, None)
        finally:
            with ExitStack() as stack:
                stack.push(second.__exit__)

    def nested(self, first, second):
        with first, second:
            pass

    def scoring(self):
        module = self.module()
        module.forward = lambda ids: SimpleNamespace(scores=NanoGPT.forward(module, ids, ids)[0])
        return module

    def attending(self, implementation):
        return type(self.m)._from_config(model_of("llama").config, attn_implementation=implementation).eval()

    def of_layers(self, n):
        model = model_of("llama")
        model.config.num_hidden_layers = n
        return model

    def lazy(self):
        module = self.module()
        module.head = nn.LazyLinear(module.wte.num_embeddings, bias=False)
        return module

    def run_once(self, module):
        module(T % 13)
        return module

    def dropping(self, p=0.5):
        model = transformers.LlamaForCausalLM(replace_config(model_of("llama").config, attention_dropout=p))
        adapters.add_slots(model, adapters.AddedLogit(first=1.0))
        return model.train()

    def renamed(self, name, factor):
        return LogitsMetric(name, lambda logits, tokens: factor * logits[:, -1, 0])


def replace_config(config, **more):
    return type(config)(**{**config.to_dict(), **more})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("fixes"))


@pytest.mark.parametrize("words", TYPED)
def test_a_fix_works_as_it_is_typed(words, world, monkeypatch):
    monkeypatch.chdir(world.tmp)
    wrong, right = TYPED[words]
    used = [name for name in dir(world) if name[0] != "_" and re.search(rf"\b{name}\b", wrong + right)]
    names = {**globals(), **{name: getattr(world, name) for name in used}}
    message = refused(lambda: eval(wrong, names))
    for part in words.split("{}"):
        assert part.strip() in message
    eval(right, names)


TELLS = re.compile(
    r"(^|[;:,.] |or |and |then )(give|use|pass|set|save|load|install|run|remove|add|call|choose|name|draw|download"
    r"|convert|move|write|describe|measure|read|take|make|put|change|check|leave|start|train|see|say|lower|raise"
    r"|end|wait|free|keep|merge|cut|copy|fill|mend|repeat|undo|enter|edit|compare|wrap)\b"
)


def messages():
    """Every text of the package that is no docstring, with {} for what is filled in."""
    for file in sorted((Path(si.__file__).parent).rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        bodies = [x.body[0] for x in ast.walk(tree) if getattr(x, "body", None) and isinstance(x.body, list)]
        skipped = {id(x.value) for x in bodies if isinstance(x, ast.Expr)}
        for joined in (x for x in ast.walk(tree) if isinstance(x, ast.JoinedStr)):
            skipped |= {id(part) for part in ast.walk(joined) if part is not joined}
        for x in (x for x in ast.walk(tree) if id(x) not in skipped):
            if isinstance(x, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in x.values)
            elif isinstance(x, ast.Constant) and isinstance(x.value, str):
                yield x.value


def holds(message, words):
    return words in message if len(words) > 8 else words == message


def test_every_fix_that_a_message_names_is_in_the_table():
    known = [*TYPED, *(words for several in FOLLOWED.values() for words in several), *OF_A_PERSON, *NOT_FIXES]
    told = [message for message in messages() if TELLS.search(message) and " " in message]
    assert len(told) > 200
    assert [message for message in told if not any(holds(message, words) for words in known)] == []


def test_the_table_holds_no_words_that_no_message_says_and_no_test_that_is_not_there():
    said = [*messages()]
    others = [words for several in (*FOLLOWED.values(), OF_A_PERSON, NOT_FIXES) for words in several]
    assert not [words for words in others if not any(holds(message, words) for message in said)]
    assert all((Path(__file__).parent / file).is_file() for file in FOLLOWED)
