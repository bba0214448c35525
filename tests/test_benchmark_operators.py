"""What a measurement launches: counts are exact, and held as low as they were promised."""

import pytest

from benchmarks import operators

MOST = {"GPT-2": (2.0, 2.0), "Llama": (1.6, 1.6), "Mistral, a window of 5": (1.5, 1.5)}


@pytest.mark.parametrize("name", operators.MODELS)
def test_a_measurement_launches_no_more_operators_than_was_promised(name):
    plain, ways = operators.counts(name)
    for count, most in zip(ways.values(), MOST[name], strict=True):
        assert count <= most * plain, ways
