"""Measures as users type them, parsed into ir-measures' measures, and who computes them.

Measures, their notation and their computation are those of ir-measures; trec_eval's names are
translated. Counts of judgments and the geometric mean are computed here.
"""

import difflib
import logging
import math
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import ir_measures
from ir_measures.measures import SumAgg
from ir_measures.providers import Provider

from denserk.config.options import LARGEST
from denserk.errors import UsageError

logger = logging.getLogger(__name__)

Measure = ir_measures.Measure

# trec_eval's names that ir-measures knows, in the order in which trec_eval 9 prints them
_COUNTS = ("num_q", "num_ret", "num_rel", "num_rel_ret")
_RANKED = ("map", "gm_map", "Rprec", "bpref", "recip_rank", "iprec_at_recall", "P")
_FURTHER = ("recall", "infAP", "ndcg", "ndcg_cut", "map_cut", "success")
_UNRANKED = ("set_P", "set_relative_P", "set_recall", "set_map", "set_F")
TREC_NAMES = (*_COUNTS, *_RANKED, *_FURTHER, *_UNRANKED)
# trec_eval's sets of measures, without those that ir-measures does not know
TREC_SETS = {
    "official": ("runid", *_COUNTS, *_RANKED),
    "set": (*_COUNTS, *_UNRANKED),
    "all_trec": ("runid", *TREC_NAMES),
}
# measures of these sets that trec_eval prints and ir-measures does not compute
LEFT_OUT_OF_SETS = {
    "set": ("utility",),
    "all_trec": (
        *("Rprec_mult", "utility", "11pt_avg", "binG", "G", "relative_P", "ndcg_rel", "Rndcg"),
        *("gm_bpref", "num_nonrel_judged_ret", "relstring"),
    ),
}
# a name of trec_eval with its cut-offs: map, ndcg_cut.5,10
_TREC_NAME = re.compile(r"[A-Za-z_]+([._]\d+(\.\d+)?(,\d+(\.\d+)?)*)?")
# a name, its parameters, and behind "@", "." or "_" its cut-offs: ndcg@10, MRR_10, P@5,10
_NAME_AND_CUTOFFS = re.compile(
    r"(?P<name>[^\W\d][\w-]*?)(?P<params>\(.*\))?"
    r"(?:[@._](?P<cutoffs>\d+(?:\.\d+)?(?:,\d+(?:\.\d+)?)*))?"
)
_LETTERS = re.compile(r"[^\W\d_]+([-_][^\W\d_]+)*")  # what a mistyped name begins with
_LAST_NUMBER = re.compile(r"\d+$")
# names are split at white space and commas, but not inside brackets
_TOKEN = re.compile(r"(?:[^\s,(){}]|,(?=\d)|\((?:[^(){}]|\{[^{}]*\})*\)|[(){}])+")

MIN_GEO_MEAN = 0.00001  # smaller values count as this in a geometric mean, as in trec_eval
# counted here: ir-measures counts NumRel at grade 1 only, and nothing for a query that a run lacks
COUNTED = ("NumQ", "NumRel")
PROBABILITIES = {"alpha", "beta", "p"}  # names of parameters; SetF's beta is none
HIGHEST_GAIN = 10_000  # the time of trec_eval grows with the gain
DEEPEST_OF_SUBTOPICS = 20  # hits of a query that pyndeval looks at
PROVIDERS: Sequence[Provider] = ir_measures.DefaultPipeline.providers
# measures of the sub-topics of a query, by the names of ir-measures
SUBTOPIC_MEASURES = {measure.NAME for measure in ir_measures.pyndeval.SUPPORTED_MEASURES}


class MeasureChoice(NamedTuple):
    """The measures that were asked for, each once, in order."""

    measures: tuple[Measure, ...]
    has_run_id: bool  # trec_eval's `runid`, which prints the run's tag, is among the names


class _GMAP(type(ir_measures.AP)):  # type: ignore[misc]
    """Geometric mean of the queries' average precision (trec_eval's gm_map)."""

    __name__ = NAME = "GMAP"
    SUPPORTED_PARAMS: ClassVar = {"rel": ir_measures.AP.SUPPORTED_PARAMS["rel"]}


ir_measures.measures.register(_GMAP())  # type: ignore[no-untyped-call]

# names of other toolkits, in lower case with "_" for "-"
_OTHER_NAMES = {
    **dict.fromkeys(("hit", "hits", "hit_rate", "hitrate", "hr"), "Success"),
    **dict.fromkeys(("recip_rank", "reciprocal_rank", "mean_reciprocal_rank"), "RR"),
    **dict.fromkeys(("map_cut", "average_precision", "mean_average_precision"), "AP"),
    **dict.fromkeys(("r_precision", "r_prec"), "Rprec"),
    "iprec_at_recall": "IPrec",
    "ndcg_cut": "nDCG",
    "strec": "StRecall",
}
# Every name of a measure in lower case, and how ir-measures spells it: of its names that differ in
# case alone (nDCG, NDCG), the first one.
_SPELLINGS = {
    **_OTHER_NAMES,
    **{name.lower(): name for name in reversed(list(ir_measures.measures.registry))},
}
_TREC_SPELLINGS_BY_LOWER_CASE = {name.lower(): name for name in (*TREC_NAMES, *TREC_SETS)}

# measures that count passages as relevant from a grade, by default 1
WITH_LEVEL = {
    measure.NAME
    for measure in ir_measures.measures.registry.values()
    if "rel" in measure.SUPPORTED_PARAMS and measure.SUPPORTED_PARAMS["rel"].default == 1
}


def accuracy_hint(measure: Measure) -> str:
    """Return a message for users of sentence-transformers, whose accuracy is another measure."""
    cutoff = measure.params.get("cutoff")
    return _accuracy_hint("" if cutoff is None else f"@{cutoff}")


def _accuracy_hint(at_cutoff: str) -> str:
    """Return the message for a cut-off, such as "@10", or for none, ""."""
    return (
        "Accuracy of ir-measures is the share of pairs of a relevant and another hit that are in "
        "the right order; whether a relevant passage is among the first hits is "
        f"Success{at_cutoff}"
    )


def underlying(measure: Measure) -> Measure:
    """Return the measure that is computed for single queries: AP for GMAP, else the measure."""
    if not isinstance(measure, _GMAP):
        return measure
    average_precision: Measure = ir_measures.AP(**measure.params)
    return average_precision


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
    if not values:
        return math.nan
    if is_mean(measure):
        return math.fsum(values) / len(values)
    logarithms = [math.log(max(value, MIN_GEO_MEAN)) for value in values]
    return math.exp(math.fsum(logarithms) / len(logarithms))


def needs_subtopics(measure: Measure) -> bool:
    """Return whether a measure is of the sub-topics of a query: alpha_nDCG, ERR_IA and so on."""
    return measure.NAME in SUBTOPIC_MEASURES


def parse_measures(texts: Iterable[str], relevance_level: int = 1) -> MeasureChoice:
    """Parse measures in ir-measures' notation, trec_eval's names and sets, and common spellings.

    `relevance_level` is the lowest grade that counts as relevant, for measures that name none. A
    UsageError names all that are unknown, incomplete, or need a package that is not installed.

    >>> texts = ["ndcg_cut.10, MRR@10", "AP(rel=3, judged_only=True) P_5,10", "hits@5"]
    >>> [str(m) for m in parse_measures(texts, 2).measures]
    ['nDCG@10', 'RR(rel=2)@10', 'AP(rel=3,judged_only=True)', 'P(rel=2)@5', 'P(rel=2)@10', \
'Success(rel=2)@5']
    """
    measures: dict[str, Measure] = {}
    mistakes: dict[str, None] = {}
    names = _names_in(texts)
    for name in names:
        if name == "runid":  # no measure
            continue
        try:
            for measure in _parse(name):
                at_level = _checked(name, measure, relevance_level)
                measures.setdefault(str(at_level), at_level)
        except UsageError as error:
            mistakes[error.message] = None
    if mistakes or not names:
        raise UsageError(
            "; ".join(mistakes) or "no measure is named",
            "measures are written as in ir-measures (nDCG@10 RR@10 AP(rel=2)@100 R@1000) "
            "or trec_eval (ndcg_cut.10 recip_rank map recall.1000)",
        )
    return MeasureChoice(tuple(measures.values()), "runid" in names)


def _names_in(texts: Iterable[str]) -> list[str]:
    """Return the names that were typed, and in place of a set of trec_eval its measures."""
    names: list[str] = []
    for text in texts:
        for token in _TOKEN.findall(text):
            token = _TREC_SPELLINGS_BY_LOWER_CASE.get(token.lower(), token)
            names += TREC_SETS.get(token, (token,))
            if token in LEFT_OUT_OF_SETS:
                left_out = " ".join(LEFT_OUT_OF_SETS[token])
                logger.info(f"{token}: without the measures that ir-measures lacks: {left_out}")
    return names


def _parse(token: str) -> list[Measure]:
    """Return the measures that one name stands for.

    A name is trec_eval's, or in ir-measures' notation, or else another spelling.
    """
    if token == "gm_map":
        return [_parse_notation("GMAP")]
    if _TREC_NAME.fullmatch(token):
        try:
            return ir_measures.parse_trec_measure(token)
        except ValueError:
            pass
    try:
        return [_parse_notation(token)]
    except (NameError, ValueError):
        pass
    measures = _parse_other_spelling(token)
    if not measures:
        raise UsageError(_unknown_measure(token))
    return measures


def _parse_notation(text: str) -> Measure:
    """Parse ir-measures' own notation."""
    with warnings.catch_warnings():  # ir-measures parses with classes that `ast` deprecates
        warnings.simplefilter("ignore", DeprecationWarning)
        return ir_measures.parse_measure(text)


def _parse_other_spelling(token: str) -> list[Measure]:
    """Return the measures of a name in another case or of another toolkit; none if unknown.

    Accuracy is not among them: ir-measures' is another measure than that of other toolkits.
    """
    match = _NAME_AND_CUTOFFS.fullmatch(token)
    if match is None:
        return []
    typed_name = match["name"]
    name = _SPELLINGS.get(typed_name.lower().replace("-", "_"))
    if name is None or (name == "Accuracy" and typed_name != name):
        return []
    notation = name + (match["params"] or "")
    notations = [notation]
    if match["cutoffs"]:
        notations = [f"{notation}@{cutoff}" for cutoff in match["cutoffs"].split(",")]
    try:
        return [_parse_notation(text) for text in notations]
    except ValueError:
        return []


def _unknown_measure(token: str) -> str:
    """Return the message for a name that is no measure, with the measures that it may stand for."""
    letters = _LETTERS.match(token)
    name = letters[0].lower().replace("-", "_") if letters else ""
    cutoff = _LAST_NUMBER.search(token)
    at_cutoff = f"@{cutoff[0]}" if cutoff else ""
    if name == "accuracy":
        return f"{token}: {_accuracy_hint(at_cutoff)}"
    near_names = difflib.get_close_matches(name, _SPELLINGS, 2)
    if not near_names:
        return f"{token} is not a measure of ir-measures"
    nearest_measures = dict.fromkeys(_SPELLINGS[near_name] + at_cutoff for near_name in near_names)
    return f"{token} is not a measure of ir-measures (nearest: {', '.join(nearest_measures)})"


# trec_eval's names by those of ir-measures, without ("") and with ("@") a cut-off or recall level:
# ndcg by ("nDCG", ""), ndcg_cut by ("nDCG", "@")
_TREC_SPELLINGS = {str(_parse(name)[0]).partition("@")[:2]: name for name in TREC_NAMES}


def _checked(token: str, measure: Measure, level: int) -> Measure:
    """Check the parameters of a measure, and set its relevance level where it names none.

    `token` is the name that was typed.
    """
    params = _typed_parameters(measure)
    if token.lower() in ("numrelret", "num_rel_ret"):
        params["rel"] = level  # ir-measures has read the name as NumRet(rel=1)
    elif level != 1 and measure.NAME in WITH_LEVEL:
        params.setdefault("rel", level)
    for name, value in params.items():
        if isinstance(value, int) and value > LARGEST:
            raise UsageError(f"{token}: {name} {value} is above {LARGEST}")
    measure = type(measure)(**params)
    if not _has_valid_parameters(measure):
        raise UsageError(f"{token}: {measure.NAME} takes {_supported_parameters(measure)}")
    if measure.NAME not in COUNTED:
        _check_provider(token, measure)
    return measure


def _typed_parameters(measure: Measure) -> dict[str, Any]:
    """Return the parameters of a measure, a whole number as a float where one is expected."""
    params = dict(measure.params)
    for name, info in measure.SUPPORTED_PARAMS.items():
        if info.dtype is float and type(params.get(name)) is int:
            params[name] = float(params[name])
    return params


def _has_valid_parameters(measure: Measure) -> bool:
    """Return whether a measure has the parameters that it needs, and no others."""
    try:
        measure.validate_params()  # type: ignore[no-untyped-call]
    except AssertionError:
        return False
    # a cut-off of 0 would end the process, in trec_eval's C code
    return bool(measure.params.get("cutoff", 1) > 0)


def _supported_parameters(measure: Measure) -> str:
    """Return the names of a measure's parameters, for a message."""
    names = []
    for name, info in measure.SUPPORTED_PARAMS.items():
        names.append(f"{name} (required)" if info.required else name)
    return ", ".join(names) or "nothing"


def _check_provider(token: str, measure: Measure) -> None:
    """Raise a UsageError if no installed package computes a measure with its parameters."""
    providers = [provider for provider in PROVIDERS if provider.supports(underlying(measure))]
    provider = _first_available(providers)
    if provider is None:
        raise UsageError(_missing_provider(token, measure, providers))
    problem = _problem_of_provider(provider, measure)
    if problem is not None:
        raise UsageError(f"{token}: {problem}")


def _first_available(providers: Iterable[Provider]) -> Provider | None:
    """Return the first installed provider; those behind it are not imported."""
    for provider in providers:
        if provider.is_available():
            return provider
    return None


def _problem_of_provider(provider: Provider, measure: Measure) -> str | None:
    """Return what is wrong with a parameter that ir-measures hands to a provider unchecked."""
    params = measure.params
    if "max_rel" in params and params.get("min_rel", 0) >= params["max_rel"]:
        return f"max_rel {params['max_rel']} is not above min_rel {params.get('min_rel', 0)}"
    probabilities = set() if measure.NAME == "SetF" else PROBABILITIES & params.keys()
    for name in probabilities:
        if not 0 <= params[name] <= 1:
            return f"{name} {params[name]}: a number from 0 to 1 is expected"
    if provider.NAME == "pytrec_eval":
        return _problem_of_trec_eval(params)
    if provider.NAME == "pyndeval":
        return _problem_of_pyndeval(measure)
    return None


def _problem_of_trec_eval(params: Mapping[str, Any]) -> str | None:
    """Return what is wrong with parameters for trec_eval's C code; None if nothing is."""
    if params.get("rel", 1) < 1:
        return f"the lowest relevant grade is {params['rel']}; 1 or more is expected"
    gains = params.get("gains", {})
    if not all(type(number) is int for number in (*gains.keys(), *gains.values())):
        return "grades and gains are whole numbers, as in gains={1: 1, 2: 3}"
    if max(gains.values(), default=0) > HIGHEST_GAIN:
        return f"gains are at most {HIGHEST_GAIN}"
    recall = params.get("recall", 0)
    if not 0 <= recall <= 1 or recall != round(recall, 2):
        return f"recall {recall}: a level from 0 to 1 with two decimals at most is expected"
    return None


def _problem_of_pyndeval(measure: Measure) -> str | None:
    """Return why pyndeval does not compute a measure with its parameters; None if it does."""
    if measure.params.get("judged_only"):
        return "pyndeval does not compute it on judged passages only; leave out judged_only"
    if "cutoff" not in measure.SUPPORTED_PARAMS:
        return None
    if 1 <= measure.params.get("cutoff", 0) <= DEEPEST_OF_SUBTOPICS:
        return None
    return (
        f"pyndeval computes it at a cut-off from 1 to {DEEPEST_OF_SUBTOPICS}, "
        f"for example {measure.NAME}@10"
    )


def _missing_provider(token: str, measure: Measure, providers: Sequence[Provider]) -> str:
    """Return the message for a measure that no installed package computes: what to install.

    `providers` support it, and are not installed. Without any, its parameters are wrong.
    """
    if not providers:
        parameters = ", ".join(measure.SUPPORTED_PARAMS)
        return (
            f"{token} is computed by no installed package with these parameters; {measure.NAME} "
            f"takes {parameters}"
        )
    instructions = [provider.install_instructions() for provider in providers]  # type: ignore[no-untyped-call]
    return f"{token} is computed by no installed package: {' or '.join(filter(None, instructions))}"


def providers_of(measures: Iterable[Measure]) -> dict[Provider, list[Measure]]:
    """Return the measures of each provider of ir-measures: the first one that supports them.

    Measures that are counted here are left out, and providers without any measure.

    >>> measures_of = providers_of(parse_measures(["nDCG@10 RR@10"]).measures)
    >>> [(provider.NAME, str(*measures)) for provider, measures in measures_of.items()]
    [('pytrec_eval', 'nDCG@10'), ('msmarco', 'RR@10')]
    """
    measures_of: dict[Provider, list[Measure]] = {provider: [] for provider in PROVIDERS}
    for measure in dict.fromkeys(map(underlying, measures)):
        if measure.NAME in COUNTED:
            continue
        supporting = (provider for provider in PROVIDERS if provider.supports(measure))
        provider = _first_available(supporting)
        assert provider is not None  # checked when the measure was parsed
        measures_of[provider].append(measure)
    return {provider: computed for provider, computed in measures_of.items() if computed}


def computed_together(provider: Provider, measures: Iterable[Measure]) -> list[list[Measure]]:
    """Return the measures of a provider in groups that it computes rightly in one pass.

    msmarco's adapter computes all measures rightly. pytrec_eval's gives the gains and the filter of
    one measure to others of the same pass (nDCG(gains={1:5}) and nDCG, AP(judged_only=True) and
    NumRet). pyndeval's computes only the first of several parameters, and other providers gain
    nothing from a common pass: there each measure is a group.

    >>> measures = parse_measures(["nDCG@5 nDCG(gains={1:5})@5 P@5"]).measures
    >>> [list(map(str, group)) for group in computed_together(ir_measures.pytrec_eval, measures)]
    [['nDCG@5', 'P@5'], ['nDCG(gains={1:5})@5']]
    """
    if provider.NAME == "msmarco":
        return [list(measures)]
    groups: dict[str, list[Measure]] = {}
    for measure in measures:
        key = str(measure)
        if provider.NAME == "pytrec_eval":
            params = measure.params
            key = f"{params.get('gains')} {params.get('judged_only', False)}"
        groups.setdefault(key, []).append(measure)
    return list(groups.values())


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
    without_level = type(measure)(**params)
    base, separator, parameter = str(without_level).partition("@")
    if base == "IPrec":
        parameter = f"{float(parameter):.2f}"  # a level of recall, not a number of hits
    name = _TREC_SPELLINGS.get((base, separator))
    if name is None:
        return str(measure)
    return f"{name}_{parameter}" if parameter else name
