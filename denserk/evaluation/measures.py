"""Measures as users type them, parsed into ir-measures' measures, and who computes them.

Measures, their notation and their computation are those of ir-measures (counts of judgments and the
geometric mean aside); trec_eval's names are translated.
"""

import difflib
import math
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple

import ir_measures
from ir_measures.measures import SumAgg
from ir_measures.providers import Evaluator, Provider
from ir_measures.providers.base import Any as AnyValue

from denserk.errors import UsageError

Measure = ir_measures.Measure
Judgments = Mapping[str, Mapping[str, int]]  # query id -> passage id -> grade

# trec_eval's names, in the order in which trec_eval 9 prints them
TREC_NAMES = (
    *("num_q", "num_ret", "num_rel", "num_rel_ret", "map", "gm_map", "Rprec", "bpref"),
    *("recip_rank", "iprec_at_recall", "P", "recall", "infAP", "ndcg", "ndcg_cut", "map_cut"),
    *("success", "set_P", "set_relative_P", "set_recall", "set_map", "set_F"),
)
WITH_PARAMETER = ("iprec_at_recall", "P", "recall", "ndcg_cut", "map_cut", "success", "set_F")
# names of trec_eval that ir-measures does not know
TREC_ONLY = (
    *("relstring", "gm_bpref", "Rprec_mult", "utility", "11pt_avg", "binG", "G"),
    *("ndcg_rel", "Rndcg", "relative_P", "num_nonrel_judged_ret", "rbp", "rbp_resid", "unj"),
)
# trec_eval's sets of measures
TREC_SETS = {
    "official": ("runid", *TREC_NAMES[:11]),
    "set": (*TREC_NAMES[:4], "utility", *TREC_NAMES[17:]),
    "all_trec": ("runid", *TREC_NAMES, *TREC_ONLY[1:]),
}
_TREC = re.compile(
    rf"(?P<name>{'|'.join((*TREC_NAMES, *TREC_ONLY))})"
    r"([._](?P<values>\d+(\.\d+)?(,\d+(\.\d+)?)*))?"
)
_TOKEN = re.compile(r"(?:[^\s,(){}]|,(?=\d)|\((?:[^(){}]|\{[^{}]*\})*\)|[(){}])+")

LARGEST = 2**31 - 1  # the largest whole number that trec_eval's C takes
MIN_GEO_MEAN = 0.00001  # smaller values count as this in a geometric mean, as in trec_eval


class MeasureChoice(NamedTuple):
    """The measures that were asked for, each once, in order."""

    measures: tuple[Measure, ...]
    left_out: tuple[str, ...]  # of a set such as `official`: what ir-measures does not know
    run_id: bool  # trec_eval's `runid` is among them, which is the run's tag


class _GMAP(type(ir_measures.AP)):  # type: ignore[misc]
    """Geometric mean of the queries' average precision (trec_eval's gm_map)."""

    __name__ = NAME = "GMAP"
    SUPPORTED_PARAMS: ClassVar = {"rel": ir_measures.AP.SUPPORTED_PARAMS["rel"]}


ir_measures.measures.register(_GMAP())  # type: ignore[no-untyped-call]


class JudgmentCounts(Provider):
    """Counts queries and relevant judgments, as `trec_eval -c` does.

    ir-measures' providers count NumRel at grade 1 only, and nothing for a query that a run lacks.
    """

    NAME = "denserk"
    SUPPORTED_MEASURES = [ir_measures.NumQ, ir_measures.NumRel(rel=AnyValue())]  # type: ignore[no-untyped-call]  # noqa: RUF012

    def evaluator(self, measures: Iterable[Measure], qrels: Any) -> "_CountEvaluator":
        """Return what counts them, for any run."""
        return _CountEvaluator(measures, qrels)


class _CountEvaluator(Evaluator):
    def __init__(self, measures: Iterable[Measure], qrels: Judgments) -> None:
        super().__init__(measures, qrels)
        self.qrels = qrels

    def iter_calc(self, run: object) -> Iterator[ir_measures.Metric]:
        for measure in self.measures:
            for qid, grades in self.qrels.items():
                counted = measure.NAME == "NumRel"
                count = sum(grade >= measure["rel"] for grade in grades.values()) if counted else 1
                yield ir_measures.Metric(qid, measure, count)


PROVIDERS: tuple[Provider, ...] = (
    JudgmentCounts(),  # type: ignore[no-untyped-call]
    *ir_measures.DefaultPipeline.providers,
)


class _Mistake(ValueError):
    """Why a measure is rejected, as a phrase that begins with the measure."""


def per_query_measure(measure: Measure) -> Measure:
    """Return the measure whose values of single queries a measure summarises.

    >>> per_query_measure(parse_measures(["gm_map"], 2).measures[0])
    AP(rel=2)
    """
    return ir_measures.AP(**measure.params) if isinstance(measure, _GMAP) else measure


def is_count(measure: Measure) -> bool:
    """Return whether a measure is a count, whose summary over queries is a sum."""
    return isinstance(measure.aggregator(), SumAgg)


def is_mean(measure: Measure) -> bool:
    """Return whether a measure's summary is the arithmetic mean over queries."""
    return not is_count(measure) and not isinstance(measure, _GMAP)


def summarize(measure: Measure, values: Collection[float]) -> float:
    """Return the sum, mean or geometric mean of the values of queries; NaN for a mean of none."""
    if is_count(measure):
        return sum(values)
    if not is_mean(measure):
        values = [math.log(max(value, MIN_GEO_MEAN)) for value in values]
    mean = math.fsum(values) / len(values) if values else math.nan
    return mean if is_mean(measure) else math.exp(mean)


def split_measures(text: str) -> list[str]:
    """Split a list of measures at white space and commas, but not inside brackets.

    >>> split_measures("nDCG@10, AP(rel=2, judged_only=True)@100 P_5,10")
    ['nDCG@10', 'AP(rel=2, judged_only=True)@100', 'P_5,10']
    """
    return _TOKEN.findall(text)


def parse_measures(texts: Iterable[str], relevance_level: int = 1) -> MeasureChoice:
    """Parse measures in ir-measures' notation, its aliases, and trec_eval's names and sets.

    `relevance_level` is the lowest grade that counts as relevant, for measures that name none. A
    UsageError names all that are unknown, incomplete, or need a package that is not installed.

    >>> [str(m) for m in parse_measures(["ndcg_cut.10 MRR@10", "map"], 2).measures]
    ['nDCG@10', 'RR(rel=2)@10', 'AP(rel=2)']
    """
    found: dict[str, Measure] = {}
    mistakes: dict[str, None] = {}
    asked = [token for text in texts for token in split_measures(text)]
    members = [name for token in asked for name in TREC_SETS.get(token, ())]
    known = [name for token in asked for name in TREC_SETS.get(token, (token,))]
    for token in known:
        if token == "runid" or (token in TREC_ONLY and token in members):
            continue
        try:
            for measure in _parse(token):
                at_level = _checked(token, measure, relevance_level)
                found.setdefault(str(at_level), at_level)
        except _Mistake as mistake:
            mistakes[str(mistake)] = None
    if mistakes or not (found or asked):
        raise UsageError(
            "; ".join(mistakes) or "no measure is named",
            "measures are written as in ir-measures (nDCG@10 RR@10 AP(rel=2)@100 R@1000) "
            "or trec_eval (ndcg_cut.10 recip_rank map recall.1000)",
        )
    left_out = dict.fromkeys(name for name in members if name in TREC_ONLY)
    return MeasureChoice(tuple(found.values()), tuple(left_out), "runid" in known)


def _parse(token: str) -> list[Measure]:
    """Return the measures that one name stands for."""
    trec = _TREC.fullmatch(token)
    if trec and trec["name"] in TREC_ONLY:
        raise _Mistake(f"{token} is a measure of trec_eval that ir-measures does not know")
    if trec and trec["values"] and trec["name"] not in WITH_PARAMETER:
        raise _Mistake(f"{token}: trec_eval's {trec['name']} takes no parameter")
    try:
        if trec and token != "gm_map":
            return ir_measures.parse_trec_measure(token)
        with warnings.catch_warnings():  # ir-measures reads with names that ast deprecates
            warnings.simplefilter("ignore", DeprecationWarning)
            return [ir_measures.parse_measure("GMAP" if trec else token)]
    except NameError:
        raise _Mistake(f"{token} is unknown{_nearest(token)}") from None
    except ValueError:  # also a fraction where a whole number belongs
        raise _Mistake(f"{token} is not how a measure is written{_nearest(token)}") from None


def _nearest(token: str) -> str:
    typed = re.match(r"\w*", token)[0]  # type: ignore[index]
    rest = token.removeprefix(typed)
    dotted = rest.startswith(".")
    known = [*ir_measures.measures.registry, *TREC_NAMES]
    lower = {name.lower(): name for name in reversed(known)}
    near = [lower[each] for each in difflib.get_close_matches(typed.lower(), lower, 2, 0.6)]
    near = [each + (rest if dotted == (each in TREC_NAMES) else "") for each in near]
    other = [each for each in near if each != token]
    return f" (nearest: {', '.join(other)})" if other else ""


def _checked(token: str, measure: Measure, level: int) -> Measure:
    """Check the parameters of a measure, and set its relevance level where it names none."""
    known, params = measure.SUPPORTED_PARAMS, dict(measure.params)
    for name, value in params.items():
        if name not in known:
            takes = ", ".join(known) or "none"
            raise _Mistake(f"{token}: no parameter {name} (it takes: {takes})")
        if known[name].dtype is float and type(value) is int:
            value = params[name] = float(value)
        fits = known[name].validate(value)  # type: ignore[no-untyped-call]
        if not (fits and _is_possible(name, value)):
            raise _Mistake(f"{token}: {name} cannot be {value!r}")
    for name, info in known.items():
        if info.required and name not in params:
            example = 0.1 if info.dtype is float else 10
            raise _Mistake(f"{token} needs a {name}, as in {measure.NAME}@{example}")
    if token in ("NumRelRet", "num_rel_ret"):
        params["rel"] = level
    elif level != 1 and _has_level(measure):
        params.setdefault("rel", level)
    measure = type(measure)(**params)
    computed = per_query_measure(measure)
    able = [provider for provider in PROVIDERS if provider.supports(computed)]
    if not any(provider.is_available() for provider in able):
        lines = " or ".join(filter(None, (p.install_instructions() for p in able)))  # type: ignore[no-untyped-call]
        needs = f"needs a package that is not installed: {lines}"
        raise _Mistake(
            f"{token} {needs if lines else 'is not computed by any of ir-measures providers'}"
        )
    return measure


def _has_level(measure: Measure) -> bool:
    """Return whether a measure counts passages as relevant from a grade, by default 1."""
    level = measure.SUPPORTED_PARAMS.get("rel")
    return level is not None and level.default == 1


def _is_possible(name: str, value: object) -> bool:
    if name == "recall" and isinstance(value, float):  # trec_eval knows its levels to two places
        return 0 <= value <= 1 and math.isclose(value, round(value, 2))
    whole = type(value) is int
    least = 1 if name == "cutoff" else -LARGEST
    return least <= value <= LARGEST if whole else name != "cutoff"  # type: ignore[operator]


def providers_of(measures: Sequence[Measure]) -> dict[Provider, list[Measure]]:
    """Return which provider computes which measures; the first that supports one computes it.

    >>> measures = parse_measures(["nDCG@10 RR@10"]).measures
    >>> {provider.NAME: list(map(str, those)) for provider, those in providers_of(measures).items()}
    {'pytrec_eval': ['nDCG@10'], 'msmarco': ['RR@10']}
    """
    shares: dict[Provider, list[Measure]] = {provider: [] for provider in PROVIDERS}
    for measure in dict.fromkeys(map(per_query_measure, measures)):
        able = (p for p in PROVIDERS if p.supports(measure) and p.is_available())
        shares[next(able)].append(measure)
    return {provider: share for provider, share in shares.items() if share}


@cache
def _trec_names() -> dict[tuple[str, str], str]:
    """Return trec_eval's names by those of ir-measures, without and with a parameter ("@")."""
    names = {}
    for name in TREC_NAMES:
        base, at, _ = str(_parse(name)[0]).partition("@")
        names[base, at] = name
    return names


def trec_spelling(measure: Measure, level: int = 1) -> str:
    """Return how trec_eval prints a measure of ir-measures; unchanged where it has no name for it.

    `level` is the relevance level of the whole evaluation, which trec_eval's names leave out.

    >>> [trec_spelling(measure) for measure in parse_measures(["nDCG@10 AP RR@10"]).measures]
    ['ndcg_cut_10', 'map', 'RR@10']
    """
    if str(measure) == f"NumRet(rel={level})":
        return "num_rel_ret"
    params = dict(measure.params)
    if _has_level(measure) and params.pop("rel", 1) != level:
        return str(measure)
    base, at, value = str(type(measure)(**params)).partition("@")
    if base == "IPrec":
        value = f"{float(value):.2f}"
    name = _trec_names().get((base, at))
    return str(measure) if name is None else f"{name}_{value}".removesuffix("_")
