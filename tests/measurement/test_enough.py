import torch

import sinkinterp as si
from sinkinterp.data.tokens import TokenSet
from sinkinterp.measurement.measure import WIDTH, measure_enough
from sinkinterp.metrics import instruments

TOKENS = torch.randint(100, (70, 13), generator=torch.Generator().manual_seed(7))


def enough(subject, epsilon):
    looks = []

    def measured(token_set, why):
        looks.append((len(token_set.tokens), why))
        return si.measure(subject, token_set, instruments=instruments.ALL)

    return measure_enough(lambda n: TokenSet.of(TOKENS[:n]), measured, 70, epsilon), looks


def test_a_measurement_ends_at_the_first_look_at_which_the_interval_is_narrow_and_else_takes_all_sequences():
    subject = si.load("sinkinterp/text-softmax")
    for epsilon, n in ((0.1, 32), (0.3, 70), (0.999, 70)):  # a rate of 0 in 32 texts may be 10%
        report, looks = enough(subject, epsilon)
        whole = si.measure(subject, TOKENS[:n], instruments=instruments.ALL)
        assert report.tensors().keys() == whole.tensors().keys()
        for name, value in whole.tensors().items():
            torch.testing.assert_close(report.tensors()[name], value, equal_nan=True, msg=name)
        assert report.protocol.source_sha256 == whole.protocol.source_sha256 and report.protocol.sequences == n
        assert sum(size for size, _ in looks) == n  # none is measured twice
        sink = report.sink(0, epsilon)
        assert (sink.high - sink.low <= WIDTH) is (n == 32) is ("of 70: Sink_1" in report.protocol.line())
