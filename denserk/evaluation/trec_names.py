"""trec_eval's names for measures, and what ir-measures calls the same ones.

The names, default cutoffs and sets are those of trec_eval 9 (`trec_eval -h -m all_trec`).
"""

import re
from dataclasses import dataclass

CUTOFFS = ("5", "10", "15", "20", "30", "100", "200", "500", "1000")


@dataclass(frozen=True)
class TrecName:
    """What a name of trec_eval means.

    Attributes:
        measure: ir-measures' name.
        defaults: parameters that stand for the bare name; empty where it takes none.
        joint: how ir-measures spells a parameter.
    """

    measure: str
    defaults: tuple[str, ...] = ()
    joint: str = "{measure}@{value}"

    def spell(self, value: str | None) -> str:
        """The measure in ir-measures' notation, with its parameter."""
        if value is None:
            return self.measure
        return self.joint.format(measure=self.measure, value=value)


TREC_NAMES = {
    "num_q": TrecName("NumQ"),
    "num_ret": TrecName("NumRet"),
    "num_rel": TrecName("NumRel"),
    "num_rel_ret": TrecName("NumRelRet"),
    "map": TrecName("AP"),
    "gm_map": TrecName("GMAP"),
    "Rprec": TrecName("Rprec"),
    "bpref": TrecName("Bpref"),
    "recip_rank": TrecName("RR"),
    "iprec_at_recall": TrecName("IPrec", tuple(f"{tenth / 10:.1f}" for tenth in range(11))),
    "P": TrecName("P", CUTOFFS),
    "recall": TrecName("R", CUTOFFS),
    "infAP": TrecName("infAP"),
    "ndcg": TrecName("nDCG"),
    "ndcg_cut": TrecName("nDCG", CUTOFFS),
    "map_cut": TrecName("AP", CUTOFFS),
    "success": TrecName("Success", ("1", "5", "10")),
    "set_P": TrecName("SetP"),
    "set_relative_P": TrecName("SetRelP"),
    "set_recall": TrecName("SetR"),
    "set_map": TrecName("SetAP"),
    "set_F": TrecName("SetF", ("1.0",), "{measure}(beta={value})"),
}
"""trec_eval's name -> ir-measures', in the order in which trec_eval prints them."""

TREC_ONLY = (
    *("relstring", "gm_bpref", "Rprec_mult", "utility", "11pt_avg", "binG", "G"),
    *("ndcg_rel", "Rndcg", "relative_P", "num_nonrel_judged_ret", "rbp", "rbp_resid", "unj"),
)
"""Names of trec_eval that ir-measures does not know."""

_OFFICIAL = (
    *("runid", "num_q", "num_ret", "num_rel", "num_rel_ret", "map", "gm_map", "Rprec", "bpref"),
    *("recip_rank", "iprec_at_recall", "P"),
)
_SET = (
    *("num_q", "num_ret", "num_rel", "num_rel_ret", "utility"),
    *("set_P", "set_relative_P", "set_recall", "set_map", "set_F"),
)
TREC_SETS = {
    "official": _OFFICIAL,
    "set": _SET,
    "all_trec": ("runid", *TREC_NAMES, *(name for name in TREC_ONLY if name != "relstring")),
}
"""trec_eval's names for sets of measures."""

_PARAMETERS = re.compile(r"(?P<name>.+?)[._](?P<values>\d+(\.\d+)?(,\d+(\.\d+)?)*)")


def split_name(text: str) -> tuple[str, tuple[str, ...]] | None:
    """A name of trec_eval and its parameters, or None where it is no such name.

    >>> split_name("ndcg_cut.10"), split_name("P_5,10"), split_name("map"), split_name("nDCG@10")
    (('ndcg_cut', ('10',)), ('P', ('5', '10')), ('map', ()), None)
    """
    known = (*TREC_NAMES, *TREC_ONLY)
    if text in known:
        return text, ()
    match = _PARAMETERS.fullmatch(text)
    if match is None or match["name"] not in known:
        return None
    return match["name"], tuple(match["values"].split(","))


_PLAIN = {meaning.measure: name for name, meaning in TREC_NAMES.items() if not meaning.defaults}
_PLAIN |= {"SetF": "set_F", "SetP(relative=True)": "set_relative_P"}
_CUT = {meaning.measure: name for name, meaning in TREC_NAMES.items() if meaning.defaults}


_LEVELLESS = ("nDCG", "NumQ", "NumRet")
"""Measures that no relevance level touches."""


def trec_spelling(measure: str, level: int = 1) -> str:
    """How trec_eval prints a measure of ir-measures; unchanged where it has no name for it.

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
    if level != 1 and f"rel={level}" not in measure and not measure.startswith(_LEVELLESS):
        return measure
    neutral = re.sub(rf"\(rel={level}\)|(?<=\()rel={level},|,rel={level}(?=[,)])", "", measure)
    base, at, value = neutral.partition("@")
    if not at:
        return _PLAIN.get(neutral, measure)
    if base not in _CUT:
        return measure
    return f"{_CUT[base]}_{float(value):.2f}" if base == "IPrec" else f"{_CUT[base]}_{value}"
