"""BEIR as suites: 18 sets, MS MARCO as BEIR has it, CQADupStack's forums, and the usual means."""

from denserk.settings.suite import Corpus, Group, Paper, Source, Suite

MEASURES = ("nDCG@10", "R@100")
METRICS = {"nDCG@10": "nDCG@10"}
FORUMS = (
    "android",
    "english",
    "gaming",
    "gis",
    "mathematica",
    "physics",
    "programmers",
    "stats",
    "tex",
    "unix",
    "webmasters",
    "wordpress",
)
_ALL = (Paper.AGGRETRIEVER, Paper.MASTER, Paper.MLR)
_TWO = (Paper.AGGRETRIEVER, Paper.MASTER)
_OTHER_TWO = (Paper.MASTER, Paper.MLR)


def _set(
    name: str,
    title: str,
    labels: dict[Paper, str] | None = None,
    *,
    split: str = "test",
    fetched: bool = True,
) -> Suite:
    def part(tail: str) -> Source:
        return Source((f"beir/{name}",), f"beir:{name}{tail}", fetched)

    corpus = Corpus(f"beir/{name}", part(""), query_max_length=512, passage_max_length=512)
    judged = part(f"/{split}")
    return Suite(
        f"beir/{name}",
        title,
        corpus,
        judged,
        MEASURES,
        judged,
        remove_query=True,
        labels=labels or {},
        metrics=METRICS,
    )


def _called(label: str, papers: tuple[Paper, ...] = _ALL) -> dict[Paper, str]:
    return dict.fromkeys(papers, label)


_TOUCHE = {**_called("Touche-2020", _OTHER_TWO), Paper.AGGRETRIEVER: "Touche-2020 (v2)"}

SUITES = (
    _set("trec-covid", "TREC-COVID", _called("TREC-COVID")),
    _set("bioasq", "BioASQ; not fetched", _called("BioASQ", _OTHER_TWO), fetched=False),
    _set("nfcorpus", "NFCorpus", _called("NFCorpus")),
    _set("nq", "Natural Questions, judged passages", _called("NQ")),
    _set("hotpotqa", "HotpotQA", _called("HotpotQA")),
    _set("fiqa", "FiQA-2018", _called("FiQA-2018")),
    _set(
        "signal1m",
        "Signal-1M (RT); not fetched",
        _called("Signal-1M(RT)", (Paper.MASTER,)),
        fetched=False,
    ),
    _set("trec-news", "TREC-NEWS; not fetched", _called("TREC-NEWS", _OTHER_TWO), fetched=False),
    _set("robust04", "Robust04; not fetched", _called("Robust04", _OTHER_TWO), fetched=False),
    _set("arguana", "ArguAna", _called("ArguAna", _TWO)),
    _set("webis-touche2020", "Touché-2020 (v2)", _TOUCHE),
    *(_set(f"cqadupstack/{forum}", f"CQADupStack, {forum}") for forum in FORUMS),
    _set("quora", "Quora", _called("Quora", _TWO)),
    _set("dbpedia-entity", "DBPedia", _called("DBPedia")),
    _set("scidocs", "SCIDOCS", _called("SCIDOCS")),
    _set("fever", "FEVER", _called("FEVER")),
    _set("climate-fever", "Climate-FEVER", _called("Climate-FEVER")),
    _set("scifact", "SciFact", _called("SciFact")),
    _set("msmarco", "MS MARCO dev, as BEIR has it; in no mean", split="dev"),
)

_18 = (
    *("trec-covid", "bioasq", "nfcorpus", "nq", "hotpotqa", "fiqa", "signal1m", "trec-news"),
    *("robust04", "arguana", "webis-touche2020", "cqadupstack", "quora", "dbpedia-entity"),
    *("scidocs", "fever", "climate-fever", "scifact"),
)


def _mean(name: str, title: str, sets: tuple[str, ...], labels: dict[Paper, str]) -> Group:
    return Group(name, title, tuple(f"beir/{name}" for name in sets), labels)


def _without(*names: str) -> tuple[str, ...]:
    return tuple(name for name in _18 if name not in names)


GROUPS = (
    _mean(
        "beir/cqadupstack",
        "CQADupStack: the mean of its 12 forums",
        tuple(f"cqadupstack/{forum}" for forum in FORUMS),
        _called("CQADupStack"),
    ),
    _mean("beir", "the mean of BEIR's 18 sets", _18, {Paper.MASTER: "BEIR (18 avg)"}),
    _mean(
        "beir-15",
        "15 sets: without Signal-1M, ArguAna, Quora",
        _without("signal1m", "arguana", "quora"),
        {Paper.MLR: "BEIR (15 avg)"},
    ),
    _mean(
        "beir-14",
        "the 14 sets that can be fetched",
        _without("bioasq", "signal1m", "trec-news", "robust04"),
        {Paper.AGGRETRIEVER: "BEIR (14 avg)"},
    ),
    _mean(
        "beir-small",
        "5 small sets: NFCorpus, FiQA, ArguAna, SCIDOCS, SciFact",
        ("nfcorpus", "fiqa", "arguana", "scidocs", "scifact"),
        {Paper.AGGRETRIEVER: "BEIR small (5 avg)"},
    ),
)
