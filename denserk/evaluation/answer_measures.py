"""The measures that matched answers can tell: those that need no other passage than the hits.

Top-k accuracy, which the papers on question answering also call R@k, is Success@k.
"""

from collections.abc import Iterable, Sequence

from denserk.errors import UsageError
from denserk.evaluation.measures import Measure, is_count, parse_measures, split_measures

TOLD = ("Success", "RR", "P")
"""Measures that answers can tell: of the hits, which holds an answer, is all that they need."""
NEEDS_ALL = (
    *("AP", "nDCG", "R", "Rprec", "Bpref", "IPrec", "infAP", "SetAP", "SetF", "SetR"),
    *("NumRel", "AP_IA", "StRecall", "alpha_nDCG", "nERR_IA", "nNRBP"),
)
"""Measures that need every relevant passage of the collection, or their number."""
EXAMPLE = "for example -m 'Success@5 Success@20 Success@100'"


def choose_answer_measures(texts: Iterable[str]) -> tuple[Measure, ...]:
    """Reads measures, and refuses those that answers cannot tell.

    Args:
        texts: lists of measures, as typed.

    Raises:
        UsageError: some are unknown or cannot be told; all of them are named.

    >>> [str(measure) for measure in choose_answer_measures(["success.5,20 MRR@10"])]
    ['Success@5', 'Success@20', 'RR@10']
    >>> choose_answer_measures(["R@20"])
    Traceback (most recent call last):
    denserk.errors.UsageError: R@20 needs every relevant passage, and answers tell only of those \
that were retrieved (what papers on question answering call R@20 or top-20 accuracy is Success@20)
    """
    found: dict[str, Measure] = {}
    mistakes: list[str] = []
    needing: list[Measure] = []
    for token in (token for text in texts for token in split_measures(text)):
        try:
            measures = parse_measures([token]).measures
        except UsageError as error:
            mistakes.append(error.message)
            continue
        for measure in measures:
            if measure.NAME in NEEDS_ALL:
                needing.append(measure)
            elif mistake := _mistake(measure):
                mistakes.append(mistake)
            else:
                found.setdefault(str(measure), measure)
    if needing:
        mistakes.append(_incomplete(needing))
    if mistakes or not found:
        raise UsageError(
            "; ".join(dict.fromkeys(mistakes)) or "no measure is named",
            f"by answers are measured {', '.join(f'{name}@k' for name in TOLD)}; {EXAMPLE}",
        )
    return tuple(found.values())


def depth_of(measures: Iterable[Measure]) -> int:
    """How many hits of a question the measures look at.

    >>> depth_of(choose_answer_measures(["Success@5 P@20"]))
    20
    """
    return max(int(measure["cutoff"]) for measure in measures)


def _mistake(measure: Measure) -> str | None:
    """Why a measure cannot be told, though it needs no other passages."""
    if measure.NAME not in TOLD or is_count(measure):
        return f"{measure} is not measured by answers"
    others = [name for name in measure.params if name != "cutoff"]
    if others:
        return f"{measure}: a passage holds an answer or not, so no {', '.join(others)}"
    if "cutoff" not in measure.params:
        return f"{measure} needs a cutoff, as in {measure}@10: no text behind it is read"
    return None


def _incomplete(measures: Sequence[Measure]) -> str:
    names = list(dict.fromkeys(map(str, measures)))
    several = len(names) > 1
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if several else names[0]
    recalls = dict.fromkeys(measure["cutoff"] for measure in measures if measure.NAME == "R")
    papers = ", ".join(
        f"what papers on question answering call R@{k} or top-{k} accuracy is Success@{k}"
        for k in recalls
    )
    return (
        f"{listed} need{'' if several else 's'} every relevant passage, and answers tell only of "
        f"those that were retrieved{f' ({papers})' if papers else ''}"
    )
