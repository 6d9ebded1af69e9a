"""Open-domain question answering over Wikipedia as suites: answers are matched, not judged."""

from denserk.settings.suite import Corpus, Paper, Source, Suite

WIKIPEDIA = Corpus(
    "wikipedia-dpr",
    Source(("dpr/psgs_w100.tsv",), "irds:dpr-w100"),
    join="pair",
    query_max_length=256,
    passage_max_length=256,
)
"""DPR's Wikipedia of December 2018: 21,015,324 passages of 100 words with titles."""

MEASURES = ("Success@5", "Success@20", "Success@100")
METRICS = {"R@5": "Success@5", "R@20": "Success@20", "R@100": "Success@100"}


def _questions(
    name: str,
    title: str,
    paths: tuple[str, ...],
    labels: dict[Paper, str] | None = None,
    *,
    regex: bool = False,
) -> Suite:
    source = Source(paths)
    return Suite(
        name,
        title,
        WIKIPEDIA,
        source,
        MEASURES,
        answers=source,
        regex=regex,
        labels=labels or {},
        metrics=METRICS,
    )


def _of_dpr(*names: str) -> tuple[str, ...]:
    """The two names of a file: as it is fetched, and as DPR's own script leaves it."""
    return tuple(f"dpr/{name}{ending}" for name in names for ending in (".qa.csv", ".csv"))


SUITES = (
    _questions(
        "nq-test",
        "Natural Questions, test (3,610 questions)",
        _of_dpr("nq-test"),
        dict.fromkeys(Paper, "NQ Test"),
    ),
    _questions(
        "tqa-test",
        "TriviaQA, test (11,313 questions)",
        _of_dpr("trivia-test"),
        dict.fromkeys((Paper.AGGRETRIEVER, Paper.CONDENSER, Paper.MLR), "TQA Test"),
    ),
    _questions(
        "squad-test",
        "SQuAD 1.1, test (10,570 questions)",
        _of_dpr("squad1-test"),
        dict.fromkeys((Paper.AGGRETRIEVER, Paper.MLR), "SQuAD"),
    ),
    _questions(
        "wq-test",
        "WebQuestions, test (2,032 questions)",
        _of_dpr("webquestions-test", "webq-test"),
    ),
    _questions(
        "curated-test",
        "CuratedTREC, test (694 questions); answers are regular expressions",
        _of_dpr("curatedtrec-test"),
        regex=True,
    ),
    _questions(
        "entityqs",
        "EntityQuestions, test (24 relations)",
        ("entityqs/test", "entityqs/dataset/test"),
        {Paper.AGGRETRIEVER: "EntityQs"},
    ),
)
