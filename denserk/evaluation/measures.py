"""Measures as users type them, parsed into ir-measures' measures, and who computes them.

Measures, their notation and their computation are those of ir-measures; trec_eval's names are
translated. Counts of judgments and the geometric mean are computed here.
"""

import difflib
import math
import re
import warnings
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar, NamedTuple

import ir_measures
from ir_measures.measures import SumAgg
from ir_measures.providers import Provider

from denserk.config.options import LARGEST
from denserk.errors import UsageError

Measure = ir_measures.Measure

# trec_eval's names that ir-measures knows, in the order in which trec_eval 9 prints them
TREC_NAMES = (
    *("num_q", "num_ret", "num_rel", "num_rel_ret", "map", "gm_map", "Rprec", "bpref"),
    *("recip_rank", "iprec_at_recall", "P", "recall", "infAP", "ndcg", "ndcg_cut", "map_cut"),
    *("success", "set_P", "set_relative_P", "set_recall", "set_map", "set_F"),
)
# trec_eval's sets of measures, without those that ir-measures does not know
TREC_SETS = {
    "official": ("runid", *TREC_NAMES[:11]),
    "set": (*TREC_NAMES[:4], *TREC_NAMES[17:]),
    "all_trec": ("runid", *TREC_NAMES),
}
_TREC = re.compile(r"[A-Za-z_]+([._]\d+(\.\d+)?(,\d+(\.\d+)?)*)?")
# names are split at white space and commas, but not inside brackets
_TOKEN = re.compile(r"(?:[^\s,(){}]|,(?=\d)|\((?:[^(){}]|\{[^{}]*\})*\)|[(){}])+")

MIN_GEO_MEAN = 0.00001  # smaller values count as this in a geometric mean, as in trec_eval
# counted here: ir-measures counts NumRel at grade 1 only, and nothing for a query that a run lacks
COUNTED = ("NumQ", "NumRel")
PROVIDERS: Sequence[Provider] = ir_measures.DefaultPipeline.providers


class MeasureChoice(NamedTuple):
    """The measures that were asked for, each once, in order."""

    measures: tuple[Measure, ...]
    run_id: bool  # trec_eval's `runid` is among them, which is the run's tag


class _GMAP(type(ir_measures.AP)):  # type: ignore[misc]
    """Geometric mean of the queries' average precision (trec_eval's gm_map)."""

    __name__ = NAME = "GMAP"
    SUPPORTED_PARAMS: ClassVar = {"rel": ir_measures.AP.SUPPORTED_PARAMS["rel"]}


ir_measures.measures.register(_GMAP())  # type: ignore[no-untyped-call]

# measures that count passages as relevant from a grade, by default 1
_LEVELS = {m.NAME: m.SUPPORTED_PARAMS.get("rel") for m in ir_measures.measures.registry.values()}
WITH_LEVEL = {name for name, level in _LEVELS.items() if level and level.default == 1}


def underlying(measure: Measure) -> Measure:
    """Return the measure whose values of single queries a measure summarises: AP for GMAP."""
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


def parse_measures(texts: Iterable[str], relevance_level: int = 1) -> MeasureChoice:
    """Parse measures in ir-measures' notation, its aliases, and trec_eval's names and sets.

    `relevance_level` is the lowest grade that counts as relevant, for measures that name none. A
    UsageError names all that are unknown, incomplete, or need a package that is not installed.

    >>> asked = ["ndcg_cut.10, MRR@10", "AP(rel=3, judged_only=True) P_5,10"]
    >>> [str(m) for m in parse_measures(asked, 2).measures]
    ['nDCG@10', 'RR(rel=2)@10', 'AP(rel=3,judged_only=True)', 'P(rel=2)@5', 'P(rel=2)@10']
    """
    found: dict[str, Measure] = {}
    mistakes: dict[str, None] = {}
    asked = [token for text in texts for token in _TOKEN.findall(text)]
    names = [name for token in asked for name in TREC_SETS.get(token, (token,))]
    for name in names:
        try:
            for measure in _parse(name) if name != "runid" else ():
                at_level = _checked(name, measure, relevance_level)
                found.setdefault(str(at_level), at_level)
        except UsageError as mistake:
            mistakes[mistake.message] = None
    if mistakes or not asked:
        raise UsageError(
            "; ".join(mistakes) or "no measure is named",
            "measures are written as in ir-measures (nDCG@10 RR@10 AP(rel=2)@100 R@1000) "
            "or trec_eval (ndcg_cut.10 recip_rank map recall.1000)",
        )
    return MeasureChoice(tuple(found.values()), "runid" in names)


def _parse(token: str) -> list[Measure]:
    """Return the measures that one name stands for."""
    if _TREC.fullmatch(token) and token != "gm_map":
        try:
            return ir_measures.parse_trec_measure(token)
        except ValueError:
            pass
    try:
        with warnings.catch_warnings():  # ir-measures reads with names that ast deprecates
            warnings.simplefilter("ignore", DeprecationWarning)
            return [ir_measures.parse_measure("GMAP" if token == "gm_map" else token)]
    except (NameError, ValueError):
        typed = re.match(r"\w*", token)[0].lower()  # type: ignore[index]
        known = {name.lower(): name for name in reversed(list(ir_measures.measures.registry))}
        near = ", ".join(known[each] for each in difflib.get_close_matches(typed, known, 2))
        nearest = f" (nearest: {near})" if near else ""
        raise UsageError(f"{token} is not a measure of ir-measures{nearest}") from None


# trec_eval's names by those of ir-measures, without and with a parameter ("@")
_TREC_SPELLINGS = {str(_parse(name)[0]).partition("@")[:2]: name for name in TREC_NAMES}


def _checked(token: str, measure: Measure, level: int) -> Measure:
    """Check the parameters of a measure, and set its relevance level where it names none."""
    known, params = measure.SUPPORTED_PARAMS, dict(measure.params)
    for name in known.keys() & params.keys():
        if known[name].dtype is float and type(params[name]) is int:
            params[name] = float(params[name])
    if token in ("NumRelRet", "num_rel_ret"):
        params["rel"] = level
    elif level != 1 and measure.NAME in WITH_LEVEL:
        params.setdefault("rel", level)
    for name, value in params.items():
        if isinstance(value, int) and value > LARGEST:
            raise UsageError(f"{token}: {name} {value} is above {LARGEST}")
    measure = type(measure)(**params)
    try:
        measure.validate_params()  # type: ignore[no-untyped-call]
        possible = params.get("cutoff", 1) > 0  # trec_eval's C code would end the process
    except AssertionError:
        possible = False
    if not possible:
        takes = (f"{name}{' (required)' * info.required}" for name, info in known.items())
        raise UsageError(f"{token}: {measure.NAME} takes {', '.join(takes) or 'nothing'}")
    able = [provider for provider in PROVIDERS if provider.supports(underlying(measure))]
    if measure.NAME not in COUNTED and not any(provider.is_available() for provider in able):
        lines = " or ".join(filter(None, (p.install_instructions() for p in able)))  # type: ignore[no-untyped-call]
        needs = f": {lines}" if lines else " that ir-measures knows"
        raise UsageError(f"{token} is computed by no installed package{needs}")
    return measure


def providers_of(measures: Iterable[Measure]) -> dict[Provider, list[Measure]]:
    """Return which provider of ir-measures computes which measures: the first that supports one.

    >>> measures = parse_measures(["nDCG@10 RR@10"]).measures
    >>> {provider.NAME: list(map(str, those)) for provider, those in providers_of(measures).items()}
    {'pytrec_eval': ['nDCG@10'], 'msmarco': ['RR@10']}
    """
    shares: dict[Provider, list[Measure]] = {provider: [] for provider in PROVIDERS}
    for measure in dict.fromkeys(map(underlying, measures)):
        if measure.NAME not in COUNTED:
            able = (p for p in PROVIDERS if p.supports(measure) and p.is_available())
            shares[next(able)].append(measure)
    return {provider: share for provider, share in shares.items() if share}


def trec_spelling(measure: Measure, level: int = 1) -> str:
    """Return how trec_eval prints a measure of ir-measures; unchanged where it has no name for it.

    `level` is the relevance level of the whole evaluation, which trec_eval's names leave out.

    >>> [trec_spelling(measure) for measure in parse_measures(["nDCG@10 AP RR@10"]).measures]
    ['ndcg_cut_10', 'map', 'RR@10']
    """
    if str(measure) == f"NumRet(rel={level})":
        return "num_rel_ret"
    params = dict(measure.params)
    if measure.NAME in WITH_LEVEL and params.pop("rel", 1) != level:
        return str(measure)
    base, at, value = str(type(measure)(**params)).partition("@")
    if base == "IPrec":
        value = f"{float(value):.2f}"
    name = _TREC_SPELLINGS.get((base, at))
    return str(measure) if name is None else f"{name}_{value}".removesuffix("_")
