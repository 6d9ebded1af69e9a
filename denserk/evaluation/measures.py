"""Measures as users type them, parsed into ir-measures' measures, and who computes them.

Measures, their notation and their computation are those of ir-measures (counts of judgments aside);
trec_eval's names are translated.
"""

import difflib
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import ir_measures
from ir_measures.measures import MeanAgg, SumAgg
from ir_measures.providers import Provider
from ir_measures.providers.base import NOT_PROVIDED

from denserk.errors import UsageError

Measure = ir_measures.Measure

PROVIDERS: tuple[Provider, ...] = tuple(ir_measures.DefaultPipeline.providers)
OWN = "denserk"  # computes what counts judgments alone

# trec_eval's names and ir-measures', in the order in which trec_eval 9 prints them
TREC_NAMES = {
    "num_q": "NumQ",
    "num_ret": "NumRet",
    "num_rel": "NumRel",
    "num_rel_ret": "NumRelRet",
    "map": "AP",
    "gm_map": "GMAP",
    "Rprec": "Rprec",
    "bpref": "Bpref",
    "recip_rank": "RR",
    "iprec_at_recall": "IPrec",
    "P": "P",
    "recall": "R",
    "infAP": "infAP",
    "ndcg": "nDCG",
    "ndcg_cut": "nDCG",
    "map_cut": "AP",
    "success": "Success",
    "set_P": "SetP",
    "set_relative_P": "SetRelP",
    "set_recall": "SetR",
    "set_map": "SetAP",
    "set_F": "SetF",
}
CUT = ("iprec_at_recall", "P", "recall", "ndcg_cut", "map_cut", "success")  # with a parameter
# names of trec_eval that ir-measures does not know
TREC_ONLY = (
    *("relstring", "gm_bpref", "Rprec_mult", "utility", "11pt_avg", "binG", "G"),
    *("ndcg_rel", "Rndcg", "relative_P", "num_nonrel_judged_ret", "rbp", "rbp_resid", "unj"),
)
_OFFICIAL = (
    *("runid", "num_q", "num_ret", "num_rel", "num_rel_ret", "map", "gm_map", "Rprec", "bpref"),
    *("recip_rank", "iprec_at_recall", "P"),
)
_SET = (
    *("num_q", "num_ret", "num_rel", "num_rel_ret", "utility"),
    *("set_P", "set_relative_P", "set_recall", "set_map", "set_F"),
)
# trec_eval's sets of measures
TREC_SETS = {
    "official": _OFFICIAL,
    "set": _SET,
    "all_trec": ("runid", *TREC_NAMES, *(name for name in TREC_ONLY if name != "relstring")),
}
_TREC = re.compile(r"(?P<name>.+?)([._](?P<values>\d+(\.\d+)?(,\d+(\.\d+)?)*))?")
_TOKEN = re.compile(r"(?:[^\s,(){}]|,(?=\d)|\((?:[^(){}]|\{[^{}]*\})*\)|[(){}])+")


@dataclass(frozen=True)
class MeasureChoice:
    """The measures that were asked for, each once, in order.

    Attributes:
        measures: ir-measures' measures.
        left_out: what a set such as `official` also names and ir-measures does not know.
        run_id: trec_eval's `runid` is among them, which is the run's tag.
    """

    measures: tuple[Measure, ...]
    left_out: tuple[str, ...] = ()
    run_id: bool = False


MIN_GEO_MEAN = 0.00001  # smaller values count as this in a geometric mean, as in trec_eval


class GeometricMean(MeanAgg):
    """Aggregate values by their geometric mean."""

    def add(self, value: float) -> None:
        """Add a query's value."""
        super().add(math.log(max(value, MIN_GEO_MEAN)))  # type: ignore[no-untyped-call]

    def result(self) -> float:
        """Return the mean; NaN without values."""
        return math.exp(super().result())  # type: ignore[no-untyped-call]


class _GMAP(type(ir_measures.AP)):  # type: ignore[misc]
    """Geometric mean of the queries' average precision (trec_eval's gm_map)."""

    __name__ = NAME = "GMAP"
    SUPPORTED_PARAMS: ClassVar = {"rel": ir_measures.AP.SUPPORTED_PARAMS["rel"]}

    def aggregator(self) -> GeometricMean:
        return GeometricMean()  # type: ignore[no-untyped-call]


ir_measures.measures.register(_GMAP())  # type: ignore[no-untyped-call]


def per_query_measure(measure: Measure) -> Measure:
    """Return the measure whose values of single queries a measure summarises.

    >>> per_query_measure(parse_measures(["gm_map"], 2).measures[0])
    AP(rel=2)
    """
    return ir_measures.AP(**measure.params) if isinstance(measure, _GMAP) else measure


LARGEST = 2**31 - 1  # the largest whole number that trec_eval's C takes


class _Mistake(ValueError):
    """Why one measure is refused, as a phrase that begins with it."""


def split_measures(text: str) -> list[str]:
    """Split a list of measures at white space and commas, but not inside brackets.

    >>> split_measures("nDCG@10, AP(rel=2, judged_only=True)@100 P_5,10")
    ['nDCG@10', 'AP(rel=2, judged_only=True)@100', 'P_5,10']
    """
    return _TOKEN.findall(text)


def is_count(measure: Measure) -> bool:
    """Return whether a measure is a count, whose summary over queries is a sum."""
    return isinstance(measure.aggregator(), SumAgg)


def is_mean(measure: Measure) -> bool:
    """Return whether a measure's summary is the arithmetic mean over queries."""
    return type(measure.aggregator()) is MeanAgg


def parse_measures(texts: Iterable[str], relevance_level: int = 1) -> MeasureChoice:
    """Parse measures in ir-measures' notation, its aliases, and trec_eval's names and sets.

    Args:
        texts: lists of measures, as typed.
        relevance_level: lowest grade that counts as relevant, for measures that name none.

    Raises:
        UsageError: some are unknown, incomplete, or need a package that is not installed; all
            are named.

    >>> [str(m) for m in parse_measures(["ndcg_cut.10 MRR@10", "map"], 2).measures]
    ['nDCG@10', 'RR(rel=2)@10', 'AP(rel=2)']
    """
    found: dict[str, Measure] = {}
    left_out: list[str] = []
    mistakes: list[str] = []
    run_id = False
    for token in (token for text in texts for token in split_measures(text)):
        try:
            names = TREC_SETS.get(token, (token,))
            run_id = run_id or "runid" in names
            if token in TREC_SETS:
                left_out += [name for name in names if name in TREC_ONLY]
            for notation in _in_notation(token):
                measure = _parse(notation, relevance_level)
                found.setdefault(str(measure), measure)
        except _Mistake as mistake:
            mistakes.append(str(mistake))
    if not found and not mistakes:
        mistakes.append("no measure is named")
    if mistakes:
        raise UsageError(
            "; ".join(dict.fromkeys(mistakes)),
            "measures are written as in ir-measures (nDCG@10 RR@10 AP(rel=2)@100 R@1000) "
            "or trec_eval (ndcg_cut.10 recip_rank map recall.1000)",
        )
    return MeasureChoice(tuple(found.values()), tuple(dict.fromkeys(left_out)), run_id)


def _in_notation(token: str) -> list[str]:
    """Return one token as measures in ir-measures' notation."""
    if token == "runid":
        return []
    if token in TREC_SETS:
        return [m for name in TREC_SETS[token] if name in TREC_NAMES for m in _in_notation(name)]
    name, values = trec_name(token)
    if name is None:
        return [token]
    if name in TREC_ONLY:
        raise _Mistake(f"{token} is a measure of trec_eval that ir-measures does not know")
    if name in (*CUT, "set_F"):
        try:
            return [str(measure) for measure in ir_measures.parse_trec_measure(token)]
        except ValueError:  # a fraction where a whole number belongs
            raise _Mistake(f"{token}: {name} cannot be {values}") from None
    if values:
        raise _Mistake(f"{token}: trec_eval's {name} takes no parameter")
    return [TREC_NAMES[name]]


def trec_name(text: str) -> tuple[str | None, str | None]:
    """Split a name of trec_eval from its parameters; (None, None) where it is no such name.

    >>> trec_name("ndcg_cut.10"), trec_name("P_5,10"), trec_name("map"), trec_name("nDCG@10")
    (('ndcg_cut', '10'), ('P', '5,10'), ('map', None), (None, None))
    """
    known = (*TREC_NAMES, *TREC_ONLY)
    match = _TREC.fullmatch(text)
    if text in known or match is None or match["name"] not in known:
        return (text if text in known else None), None
    return match["name"], match["values"]


def _parse(notation: str, level: int) -> Measure:
    try:
        with warnings.catch_warnings():  # ir-measures reads with names that ast deprecates
            warnings.simplefilter("ignore", DeprecationWarning)
            measure = ir_measures.parse_measure(notation)
    except NameError:
        raise _Mistake(f"{notation} is unknown{_nearest(notation)}") from None
    except ValueError:
        raise _Mistake(f"{notation} is not how a measure is written{_nearest(notation)}") from None
    measure = _checked(notation, measure)
    rel = measure.SUPPORTED_PARAMS.get("rel")
    own = rel is None or rel.default != 1 or "rel" in measure.params
    if level == 1 or (own and notation != "NumRelRet"):
        return measure
    at_level: Measure = measure(rel=level)
    return at_level


def _nearest(notation: str) -> str:
    match = re.match(r"\w+", notation)
    if match is None:
        return ""
    name, rest = match[0], notation[match.end() :]
    lower: dict[str, str] = {}
    for known in (*ir_measures.measures.registry, *TREC_NAMES):
        lower.setdefault(known.lower(), known)
    names = [lower[near] for near in difflib.get_close_matches(name.lower(), lower, 2, 0.6)]
    dotted = rest.startswith(".")
    spelled = [near + (rest if dotted == (near in TREC_NAMES) else "") for near in names]
    other = [near for near in spelled if near != notation]
    return f" (nearest: {', '.join(other)})" if other else ""


def _checked(notation: str, measure: Measure) -> Measure:
    """Check the parameters of a measure; a whole number may stand for a fraction."""
    known = measure.SUPPORTED_PARAMS
    unknown = [name for name in measure.params if name not in known]
    if unknown:
        takes = ", ".join(known) or "none"
        raise _Mistake(f"{notation}: no parameter {', '.join(unknown)} (it takes: {takes})")
    whole = {
        name: float(value)
        for name, value in measure.params.items()
        if known[name].dtype is float and type(value) is int
    }
    measure = type(measure)(**(measure.params | whole))
    for name, info in known.items():
        value = measure[name]
        if value is NOT_PROVIDED and info.required:
            example = 0.1 if info.dtype is float else 10
            raise _Mistake(f"{notation} needs a {name}, as in {measure.NAME}@{example}")
        if not (_fits(info, value) and _possible(name, value)):
            raise _Mistake(f"{notation}: {name} cannot be {value!r}")
    computed = per_query_measure(measure)
    available = (p.supports(computed) and p.is_available() for p in PROVIDERS)
    if not counts_judgments(computed) and not any(available):
        raise _Mistake(f"{notation} {_what_it_needs(measure)}")
    return measure


def _fits(info: Any, value: Any) -> bool:
    return bool(info.validate(value))


def _possible(name: str, value: Any) -> bool:
    if value is NOT_PROVIDED:
        return True
    if name == "cutoff":
        return type(value) is int and 1 <= value <= LARGEST
    if name == "recall":  # trec_eval knows its levels to two places
        return 0 <= value <= 1 and math.isclose(value, round(value, 2))
    return type(value) is not int or abs(value) <= LARGEST


def _what_it_needs(measure: Measure) -> str:
    """Return why no provider computes a measure."""
    able: list[Any] = [provider for provider in PROVIDERS if provider.supports(measure)]
    lines = [line for provider in able if (line := provider.install_instructions())]
    if not lines:
        return "is not computed by any of ir-measures' providers"
    return f"needs a package that is not installed: {' or '.join(lines)}"


def counts_judgments(measure: Measure) -> bool:
    """Return whether a measure counts judgments alone, which is done here.

    ir-measures' providers count NumRel at grade 1 only, and nothing for a query that a run lacks;
    `trec_eval -c` counts it.
    """
    return measure.NAME in ("NumQ", "NumRel")


def count_judgments(measure: Measure, grades: Mapping[str, int]) -> int:
    """Return NumQ or NumRel of one judged query: passage id -> grade."""
    if measure.NAME == "NumQ":
        return 1
    return sum(grade >= measure["rel"] for grade in grades.values())


def providers_of(measures: Sequence[Measure]) -> dict[Provider, list[Measure]]:
    """Return which provider computes which measures; the first that supports one computes it.

    >>> measures = parse_measures(["nDCG@10 RR@10"]).measures
    >>> {provider.NAME: list(map(str, those)) for provider, those in providers_of(measures).items()}
    {'pytrec_eval': ['nDCG@10'], 'msmarco': ['RR@10']}
    """
    shares: dict[Provider, list[Measure]] = {}
    for measure in dict.fromkeys(map(per_query_measure, measures)):
        if not counts_judgments(measure):
            able = (p for p in PROVIDERS if p.supports(measure) and p.is_available())
            shares.setdefault(next(able), []).append(measure)
    order = {provider: number for number, provider in enumerate(PROVIDERS)}
    return dict(sorted(shares.items(), key=lambda share: order[share[0]]))


def trec_spelling(measure: str, level: int = 1) -> str:
    """Return how trec_eval prints a measure of ir-measures; unchanged where it has no name for it.

    Args:
        measure: in ir-measures' notation, as it prints itself.
        level: the relevance level of the whole evaluation, which trec_eval's names leave out.

    >>> [trec_spelling(name) for name in ("nDCG@10", "AP", "RR@10", "IPrec@0.1")]
    ['ndcg_cut_10', 'map', 'RR@10', 'iprec_at_recall_0.10']
    >>> trec_spelling("AP(rel=2)@100", 2), trec_spelling("AP(rel=2)", 1), trec_spelling("AP", 2)
    ('map_cut_100', 'AP(rel=2)', 'AP')
    """
    if measure == f"NumRet(rel={level})":
        return "num_rel_ret"
    if (
        level != 1
        and f"rel={level}" not in measure
        and not measure.startswith(("nDCG", "NumQ", "NumRet"))
    ):
        return measure
    neutral = re.sub(rf"\(rel={level}\)|(?<=\()rel={level},|,rel={level}(?=[,)])", "", measure)
    base, at, value = neutral.partition("@")
    if base == "IPrec" and at:
        value = f"{float(value):.2f}"
    names = {"SetP(relative=True)": "set_relative_P"} | {
        ours: name for name, ours in TREC_NAMES.items() if (name in CUT) == bool(at)
    }
    return f"{names[base]}_{value}".removesuffix("_") if base in names else measure
