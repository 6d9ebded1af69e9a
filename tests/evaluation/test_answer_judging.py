import os
import signal
from concurrent.futures import ProcessPoolExecutor

import pytest

from denserk.errors import DenserkError
from denserk.evaluation import answer_judging
from denserk.evaluation.answer_judging import Case, Verdict, judge, judging
from denserk.settings.answers import AnswerSettings

CASES = [Case((f"answer {number}", "."), (f"an Answer\n{number}", "none")) for number in range(20)]


@pytest.mark.parametrize(
    ("answers", "options", "verdict"),
    [
        (("b c", " "), {}, Verdict((True, False), tokenless=1)),
        (("x", " "), {"strict": True}, Verdict((True, True), tokenless=1)),
        ((r"\bb\s", "("), {"regex": True}, Verdict((True, False), broken=("(",))),
        ((), {}, Verdict((False, False))),
    ],
)
def test_one_question(answers, options, verdict):
    assert judge(Case(answers, ("a b c", "d")), **options) == verdict


@pytest.mark.slow
def test_several_processes_say_what_one_does():
    with judging(AnswerSettings()) as alone, judging(AnswerSettings(num_workers=2)) as together:
        assert alone(CASES) == together(CASES) == [Verdict((True, False))] * 20


class DyingPool(ProcessPoolExecutor):
    def map(self, *arguments, **options):
        os.kill(self.submit(os.getpid).result(), signal.SIGKILL)
        return super().map(*arguments, **options)


@pytest.mark.slow
def test_a_process_that_is_killed_is_told(monkeypatch):
    monkeypatch.setattr(answer_judging, "ProcessPoolExecutor", DyingPool)
    with (
        pytest.raises(DenserkError, match="ended from outside"),
        judging(AnswerSettings(num_workers=2)) as judges,
    ):
        judges(CASES)


class AskingPool(ProcessPoolExecutor):
    def map(self, *arguments, **options):
        assert self.submit(signal.getsignal, signal.SIGINT).result() is signal.SIG_IGN
        return super().map(*arguments, **options)


@pytest.fixture
def interruptible():
    """A process in the background of a script would ignore interrupts from its start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_an_interrupt_is_for_the_first_process_alone(interruptible, monkeypatch):
    monkeypatch.setattr(answer_judging, "ProcessPoolExecutor", AskingPool)
    with judging(AnswerSettings(num_workers=2)) as judges:
        assert judges(CASES[:1]) == [Verdict((True, False))]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
