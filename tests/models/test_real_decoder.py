"""Laws of Whisper's decoder as a subject; skipped where `make models` has not made it."""

import pytest

import sinkinterp as si
from sinkinterp.backends.encoder import NoEncoder, Silence
from sinkinterp.backends.files.named_models import downloads
from sinkinterp.data.tokens import random_tokens

WHISPER = downloads() / "whisper-tiny.en"
pytestmark = pytest.mark.skipif(not WHISPER.is_dir(), reason="needs local/whisper-tiny.en: run make models")
NO_SPEECH, NO_TIMESTAMPS, YOU, START = 50361, 50362, 345, 50257


@pytest.fixture(scope="module")
def on_silence():
    return si.load("local/whisper-tiny.en", encoder=Silence())


def test_the_subject_is_the_decoder(on_silence):
    shape = on_silence.shape
    assert (shape.n_layers, shape.n_heads, shape.d_model, shape.n_ctx) == (4, 6, 384, 448)
    assert len(on_silence.modules.tables) == 1 and on_silence.cross_attention().n_keys == 1500


def test_the_sink_needs_cross_attention_and_goes_where_p1_goes(on_silence):
    tokens = random_tokens(on_silence.shape.vocab, 64, 8, first=START)
    plain, swapped = (
        si.measure(on_silence, tokens, positions=(0, 4), edits=edits) for edits in ([], [si.SwapPositions(0, 4)])
    )
    without = si.measure(si.load("local/whisper-tiny.en", encoder=NoEncoder()), tokens, positions=(0,))
    assert plain.sink_rate() > 0.5 > 0.1 > without.sink_rate()
    assert swapped.sink_rate() < 0.2 < 0.3 < swapped.sink_rate(4)
    assert "encoder silence" in plain.protocol.line()
