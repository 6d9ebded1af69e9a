import pytest

from denserk.errors import UsageError
from denserk.settings.answers import AnswerInput, AnswerSettings, refuse_idle
from denserk.settings.formats import CorpusFormat, CorpusSettings


def test_answers_need_a_corpus():
    with pytest.raises(UsageError, match=r"--answers a.qa.csv are looked for .* no corpus"):
        AnswerInput(answers="a.qa.csv")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"topk": (5, 0)}, "topk=5,0: at least 1"),
        ({"num_workers": 0}, "--num-workers 0: at least 1"),
        ({"regex": True, "strict_dpr": True}, "strict-dpr.* is about answers that are words"),
        ({"write_dpr_json": "-"}, r"standard output \(-\) is for the measures"),
    ],
)
def test_refusals(given, told):
    with pytest.raises(UsageError, match=told):
        AnswerSettings(**given)


def test_options_that_would_do_nothing_are_named_together():
    groups = [AnswerSettings(num_workers=2), CorpusSettings(CorpusFormat.DPR)]
    with pytest.raises(UsageError, match=r"^--num-workers, --corpus-format: for answers$"):
        refuse_idle(groups, "for answers", "leave them out")
    refuse_idle([AnswerSettings(), CorpusSettings()], "for answers", "leave them out")
