"""The gallery is drawn from whatever ships."""

import json
import re
import sys
from contextlib import nullcontext

import numpy as np
import plotly.graph_objects as go
import pytest
from typer.testing import CliRunner

from sinkinterp.backends.files.named_models import SHIPPED, downloads
from sinkinterp.cli.main import app
from sinkinterp.pages import gallery
from sinkinterp.plots.theme import caption_of


@pytest.fixture(scope="module")
def few():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery, "SEQUENCES", 11)
        patch.setattr("sinkinterp.pages.gallery.DEMO_SEQUENCES", 11)
        patch.setattr(gallery, "LANGUAGE_MODELS", {})  # real weights have a test of their own
        yield patch


@pytest.fixture(scope="module")
def drawn(few, tmp_path_factory):
    """What the command wrote, pictures as the JSON of their figures."""
    few.setattr("sinkinterp.pages.report._one_browser", nullcontext)
    few.setattr(
        go.Figure, "to_image", lambda figure, kind, **options: bytes(33) + figure.to_json().encode() + bytes(12)
    )
    out = tmp_path_factory.mktemp("gallery")
    result = CliRunner().invoke(app, ["gallery", "--out", str(out)])
    assert result.exit_code == 0, result.output
    return out


def test_every_checkpoint_that_ships_is_shown(drawn):
    html = (drawn / "gallery.html").read_text()
    for folder in SHIPPED.iterdir():
        if (folder / "recipe.json").is_file():
            assert f"<h2>{folder.name}</h2>" in html
    assert html.count("<span>Is there a sink?</span>") == len([*SHIPPED.glob("*/recipe.json")])
    assert html.count("<figcaption>") > 10 and "<figcaption></figcaption>" not in html


def test_every_preview_is_a_figure_with_title_and_protocol(drawn):
    names = {path.stem for path in drawn.glob("*.png")}
    assert names == set(gallery.PREVIEWS) - {"smollm2"}
    for name in names:
        content = (drawn / f"{name}.png").read_bytes()
        figure = go.Figure(json.loads(content[content.index(b'{"') :].split(b"\0")[0]))
        assert figure.layout.title.text
        assert all(re.search(part, caption_of(figure)) for part in ("n<?=", "T=", "BOS")), name


def test_pictures_can_be_left_out_and_are_missed_in_one_line(few, tmp_path):
    few.setattr(gallery, "gallery", lambda on_model: gallery.Gallery("<html>", {"maps": go.Figure()}))
    few.setitem(sys.modules, "kaleido", None)
    result = CliRunner().invoke(app, ["gallery", "--out", str(tmp_path), "--no-pictures"])
    assert result.exit_code == 0 and [path.name for path in tmp_path.iterdir()] == ["gallery.html"]
    result = CliRunner().invoke(app, ["gallery", "--out", str(tmp_path), "--force"])
    assert result.exit_code == 2 and "pip install kaleido" in result.output
    assert (tmp_path / "gallery.html").read_text() == "<html>"


@pytest.mark.skipif(
    not (downloads() / "smollm2-135m-instruct").is_dir(), reason="needs local/smollm2-135m-instruct: run make models"
)
def test_a_pretrained_model_that_is_here_is_shown(monkeypatch):
    monkeypatch.setattr(gallery, "FEWER", 2)
    monkeypatch.setattr(gallery, "LANGUAGE_MODELS", {"smollm2-135m-instruct": "SmolLM2-135M-Instruct"})
    named = []
    sections = list(gallery.pretrained_models(named.append))
    assert named == ["SmolLM2-135M-Instruct"] and sections[0].title == gallery.PREVIEWS["smollm2"]
    natural, repeated = (np.array(trace.z) for trace in sections[0].figures[0].data[:2])
    assert natural.shape == repeated.shape == (30, 9) and natural.mean() > 0.4 > 0.1 > repeated.mean()
    for figure in (figure for section in sections for figure in section.figures):
        assert "GGUF Q4_1" in caption_of(figure) and "fine-tuned for chat" in caption_of(figure)


def test_without_pretrained_models_nothing_is_drawn_of_them(tmp_path, monkeypatch):
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path))
    assert not list(gallery.pretrained_models())
