from types import SimpleNamespace

import pytest
import torch

from denserk.training.length_groups import Work
from denserk.training.speed import Clock, Speed

CPU = torch.device("cpu")


@pytest.fixture
def now(monkeypatch):
    clock = SimpleNamespace(value=100.0)
    monkeypatch.setattr("time.perf_counter", lambda: clock.value)
    return clock


def test_steps_are_timed_and_validations_and_checkpoints_are_not(now):
    work = Work()
    clock = Clock(work)
    clock.on_train_begin(None, None, None)
    assert clock.speed(CPU) is None
    for _ in range(2):
        now.value += 1  # the data comes
        clock.on_step_begin(None, None, None)
        now.value += 3
        work.count([30, 10])
        clock.on_step_end(None, None, None)
        now.value += 50
        clock.on_evaluate(None, None, None)
        now.value += 50
        clock.on_save(None, None, None)
    assert clock.tokens_per_second == 80 / 8
    found = clock.speed(CPU)
    assert found is not None
    assert found.tokens_per_second == 10
    assert found.padding == pytest.approx(40 / 120)
    assert found.waiting == pytest.approx(2 / 8)
    assert found.peak_mib > 10


def test_the_sentence():
    assert str(Speed(12345.6, 0.071, 0.004, 2048.4)) == (
        "12,346 tokens/s (7% padding, 0% of the time waiting for data), at most 2,048 MiB"
    )
