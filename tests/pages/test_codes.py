import base64
import gzip

import numpy as np
import pytest

from sinkinterp.pages.atlas.encode import LogScale, Scale, linear, logarithmic, packed

DRAWN = np.random.default_rng(0)


@pytest.mark.parametrize("bits", [8, 16])
def test_linear_codes_are_half_a_step_away_at_most(bits):
    values = DRAWN.normal(size=(3, 101)) * 7
    scale = linear(values, bits)
    assert np.abs(scale.values(scale.codes(values)) - values).max() <= scale.step / 2 * 1.001
    assert scale.codes(values).dtype == f"uint{bits}"
    assert {scale.codes(values).min(), scale.codes(values).max()} == {1, 2**bits - 1}


@pytest.mark.parametrize("bits", [8, 16])
def test_logarithmic_codes_keep_the_ratio(bits):
    values = np.exp(-DRAWN.random(997) * 12)
    scale = logarithmic(values, bits)
    ratio = scale.values(scale.codes(values)) / values
    assert np.abs(np.log(ratio)).max() <= scale.step / 2 * 1.001
    assert np.expm1(scale.step / 2) < {8: 0.03, 16: 2e-4}[bits]


@pytest.mark.parametrize("scale", [Scale(-2.0, 3.0), Scale(0.0, 1.0, 16), LogScale(1e-3, 1.0), LogScale(1e-9, 2.0, 16)])
def test_no_value_is_code_0_and_comes_back_as_none(scale):
    codes = scale.codes(np.array([np.nan, scale.low, scale.high]))
    assert codes[0] == 0 and codes[2] == 2**scale.bits - 1
    np.testing.assert_allclose(scale.values(codes), [np.nan, scale.low, scale.high], rtol=1e-6)


def test_zero_and_what_is_too_small_is_code_1_of_a_logarithmic_scale():
    scale = logarithmic(np.array([0.0, 1e-30, 0.5]), 8)
    assert (scale.low, scale.high) == (pytest.approx(5e-7), 0.5)
    assert scale.codes(np.array([0.0, 1e-30, 1e-7, 5e-7, 0.5])).tolist() == [1, 1, 1, 2, 255]
    assert scale.values(np.array([1])).tolist() == [0]


def test_a_scale_of_nothing_or_of_one_number_has_codes():
    assert logarithmic(np.zeros(3), 8).codes(np.zeros(3)).tolist() == [1, 1, 1]
    one = logarithmic(np.full(2, 0.25), 8)
    assert one.values(one.codes(np.full(2, 0.25))) == pytest.approx([0.25, 0.25])
    same = linear(np.full(2, -3.0), 8)
    assert same.values(same.codes(np.full(2, -3.0))) == pytest.approx([-3, -3])


def test_packed_codes_are_low_bytes_and_then_high_bytes():
    codes = np.array([[1, 256], [513, 65535]], dtype=np.uint16)
    assert list(gzip.decompress(base64.b64decode(packed(codes)))) == [1, 0, 1, 255, 0, 1, 2, 255]
    assert list(gzip.decompress(base64.b64decode(packed(codes.astype(np.uint8))))) == [1, 0, 1, 255]
    assert packed(codes) == packed(codes.copy())


@pytest.mark.parametrize(
    ("scale", "words"),
    [(Scale(-1.0, 1.0), "to within 0.004"), (LogScale(1e-6, 1.0), "to within 3%, or as 0 below 1e-06")],
)
def test_a_scale_states_the_precision_that_it_keeps(scale, words):
    assert scale.precision() == words
