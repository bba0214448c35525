"""The sweep over causal architectures, on families of every kind; `python -m tools.families` sweeps all."""

import contextlib
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest
from huggingface_hub.errors import StrictDataclassClassValidationError
from transformers import AutoConfig, PretrainedConfig
from typer.testing import CliRunner

from sinkinterp.checks import InputError
from tools import families as families_of_transformers
from tools.families import DIFFERS, ERROR, FAMILIES, MEASURED, NOT_BUILT, REASONS, REFUSED, app, is_sound, sweep

TABLE = Path(__file__).parents[1] / "docs/families.md"
MEASURED_HERE = (
    *("bloom", "codegen", "falcon", "gpt_neo", "gptj", "mpt", "xglm", "openai-gpt", "gpt2", "opt", "llama", "gemma3"),
    *("glm4", "granite", "granite_swa", "granitemoeshared", "granitemoehybrid", "lfm2_moe", "lfm3", "gpt_oss", "jamba"),
    *("recurrent_gemma", "falcon_h1", "modernbert-decoder", "deepseek_v3", "bart", "xlm-roberta", "roformer", "trocr"),
    *("diffllama", "got_ocr2", "git", "gemma3n_text", "gemma4_text", "hy_v4", "mimo_v2_flash", "deepseek_v32"),
)
REFUSED_HERE = {
    "deepseek_v4": "attends to summaries of many tokens",
    "mamba": "a recurrence without attention",
    "reformer": "attends to tokens of the same hash alone",
    "longcat_flash": "a block attends twice",
    "inkling2_text": "depends on what the query says",
}


@pytest.fixture(scope="module")
def table():
    return sweep([*MEASURED_HERE, *REFUSED_HERE])


def test_families_of_every_kind_are_measured_as_eager_attention_is(table):
    rows = {row["family"]: row for row in table.records()}
    assert {rows[name]["verdict"] for name in MEASURED_HERE} == {MEASURED} and is_sound(table)


def is_on(value):
    return any(map(is_on, value)) if isinstance(value, list | tuple) else bool(value)


def switched_off(config, tiny):
    """The settings that are on in a configuration and off in the tiny one; token ids are numbers of a vocabulary."""
    shrunk = tiny.to_dict()
    for name, value in config.to_dict().items():
        if name in config.sub_configs and isinstance(getattr(config, name), PretrainedConfig):
            yield from switched_off(getattr(config, name), getattr(tiny, name))
        elif not name.endswith("token_id") and is_on(value) and not is_on(shrunk.get(name)):
            yield name


def test_a_family_is_tried_at_its_own_settings_and_only_its_sizes_shrink():
    settings = {}
    for family in FAMILIES:
        with contextlib.suppress(ValueError, StrictDataclassClassValidationError):  # of a family that is not built
            settings[family] = [
                *switched_off(AutoConfig.for_model(family), families_of_transformers.tiny_config(family))
            ]
    assert len(settings) >= len(FAMILIES) - 2
    assert not {family: names for family, names in settings.items() if names}
    for family in ("gemma3n_text", "gemma4_text", "gemma4_unified_text"):
        assert families_of_transformers.tiny_config(family).num_kv_shared_layers


def test_what_cannot_be_measured_is_refused_in_one_line(table):
    rows = {row["family"]: row for row in table.records()}
    for name, reason in REFUSED_HERE.items():
        assert rows[name]["verdict"] == REFUSED and reason in rows[name]["why"] and "\n" not in rows[name]["why"], name


def test_the_table_in_the_docs_says_the_same_of_every_family(table):
    lines = [line.split(" | ") for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    written = {name.removeprefix("| "): (verdict, updates) for name, verdict, updates, *_ in lines}
    assert {name for name in FAMILIES if not written[name][0].startswith(MEASURED)} == set(REASONS)
    assert len(FAMILIES) - len(REASONS) >= 164 and not {ERROR, DIFFERS} & {verdict for verdict, _ in written.values()}
    for row in table.records():
        assert written[row["family"]] == (row["verdict"], row["feed-forward updates"] or ""), row


def test_an_error_and_other_numbers_make_a_table_unsound_and_a_refusal_does_not(monkeypatch):
    for error, verdict, why in (
        (ZeroDivisionError("a hook divides"), ERROR, "ZeroDivisionError: a hook divides"),
        (InputError("not this one; take another"), REFUSED, "not this one; take another"),
    ):
        monkeypatch.setattr(families_of_transformers, "load", Mock(side_effect=error))
        (row,) = sweep(["gpt2"]).records()
        assert (row["verdict"], row["why"]) == (verdict, why) and is_sound(sweep(["gpt2"])) == (verdict == REFUSED)
    monkeypatch.undo()
    honest = families_of_transformers.dense_patterns
    monkeypatch.setattr(families_of_transformers, "dense_patterns", lambda model, tokens: honest(model, tokens) + 1e-3)
    assert sweep(["gpt2"]).frame["verdict"].tolist() == [DIFFERS]


def test_a_family_that_takes_too_long_is_stopped(monkeypatch):
    before = signal.getsignal(signal.SIGALRM)
    monkeypatch.setattr(families_of_transformers, "tiny_model", lambda family: signal.pause())
    (row,) = sweep(["gpt2"], seconds=1).records()
    assert row["verdict"] == NOT_BUILT and "not done after 1 seconds" in row["why"]
    assert signal.getsignal(signal.SIGALRM) == before


def test_the_command_prints_and_writes_the_table(tmp_path):
    file = tmp_path / "families.md"
    result = CliRunner().invoke(app, ["bloom", "mamba", "--markdown", str(file)])
    assert result.exit_code == 0 and "bloom" in result.output and "wrote" in result.output
    assert "| bloom | measured |" in file.read_text() and "| mamba | refused |" in file.read_text()


def test_the_command_refuses_a_name_and_fails_at_an_error(monkeypatch):
    result = CliRunner().invoke(app, ["nonsense"])
    assert result.exit_code == 2 and "nonsense" in result.output
    monkeypatch.setattr(families_of_transformers, "load", None)
    assert CliRunner().invoke(app, ["gpt2"]).exit_code == 1
