"""MS MARCO and TREC's Deep Learning tracks as suites: official passages, titled ones, documents."""

from denserk.settings.suite import Corpus, Paper, Source, Suite

PASSAGES = Corpus(
    "msmarco-passage",
    Source(("msmarco/collection.tsv", "msmarco/corpus.jsonl"), "irds:msmarco-passage"),
)
"""The official collection: 8,841,823 passages without titles."""
TITLED = Corpus(
    "msmarco-passage-titled",
    Source(("msmarco-titled/corpus.tsv", "msmarco-titled/corpus.jsonl")),
    join="sep",
)
"""The same passages with the titles of their documents, as RocketQA released them."""
DOCUMENTS = Corpus(
    "msmarco-document",
    Source(("msmarco-doc/corpus.jsonl", "msmarco-doc/corpus.tsv"), "irds:msmarco-document"),
    passage_max_length=512,
)
"""3,213,835 documents, or their parts under ids such as D301595#2."""

DEV_TOPICS = Source(("msmarco/queries.dev.small.tsv",), "irds:msmarco-passage/dev/small")
DEV_QRELS = Source(("msmarco/qrels.dev.small.tsv",), "irds:msmarco-passage/dev/small")

DEV_METRICS = {"RR@10": "RR@10", "R@50": "R@50", "R@1K": "R@1000", "MAP": "AP"}
DL_METRICS = {"nDCG@10": "nDCG@10", "MAP": "AP(rel=2)", "R@1K": "R(rel=2)@1000"}
DEV_MEASURES = ("RR@10", "R@50", "R@1000")
DL_MEASURES = ("nDCG@10", "AP(rel=2)", "R(rel=2)@1000")
OFFICIAL = (Paper.AGGRETRIEVER,)
ON_TITLES = (Paper.CONDENSER, Paper.MASTER, Paper.MLR)


def _dev(name: str, title: str, corpus: Corpus, papers: tuple[Paper, ...]) -> Suite:
    return Suite(
        name,
        title,
        corpus,
        DEV_TOPICS,
        DEV_MEASURES,
        DEV_QRELS,
        labels=dict.fromkeys(papers, "MARCO Dev"),
        metrics=DEV_METRICS,
    )


def _deep_learning(
    year: int, name: str, title: str, corpus: Corpus, papers: tuple[Paper, ...]
) -> Suite:
    judged = f"irds:msmarco-passage/trec-dl-{year}/judged"
    return Suite(
        name,
        title,
        corpus,
        Source((f"msmarco/msmarco-test{year}-queries.tsv",), judged),
        DL_MEASURES,
        Source((f"msmarco/{year}qrels-pass.txt",), judged),
        labels=dict.fromkeys(papers, f"TREC DL{year % 100}"),
        metrics=DL_METRICS,
    )


SUITES = (
    _dev("msmarco-dev", "MS MARCO passages, dev (small)", PASSAGES, OFFICIAL),
    _dev("msmarco-titled-dev", "the same with titles", TITLED, ON_TITLES),
    _deep_learning(2019, "dl19", "TREC Deep Learning 2019, passages", PASSAGES, OFFICIAL),
    _deep_learning(2019, "dl19-titled", "the same with titles", TITLED, ON_TITLES),
    _deep_learning(2020, "dl20", "TREC Deep Learning 2020, passages", PASSAGES, OFFICIAL),
    _deep_learning(2020, "dl20-titled", "the same with titles", TITLED, (Paper.MASTER,)),
    Suite(
        "msmarco-doc-dev",
        "MS MARCO documents, dev",
        DOCUMENTS,
        Source(("msmarco-doc/msmarco-docdev-queries.tsv",), "irds:msmarco-document/dev"),
        ("RR@100", "R@100"),
        Source(("msmarco-doc/msmarco-docdev-qrels.tsv",), "irds:msmarco-document/dev"),
        max_passage=True,
        labels={Paper.CONDENSER: "MARCO Document Dev"},
        metrics={"RR@100": "RR@100"},
    ),
    Suite(
        "dl19-doc",
        "TREC Deep Learning 2019, documents",
        DOCUMENTS,
        Source(
            ("msmarco-doc/msmarco-test2019-queries.tsv",),
            "irds:msmarco-document/trec-dl-2019/judged",
        ),
        ("nDCG@10", "R@100"),
        Source(("msmarco-doc/2019qrels-docs.txt",), "irds:msmarco-document/trec-dl-2019/judged"),
        max_passage=True,
        labels={Paper.CONDENSER: "TREC DL19 Document"},
        metrics={"nDCG@10": "nDCG@10"},
    ),
)
