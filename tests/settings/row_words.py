"""A row of a paper's table of settings, in the table's words -> settings by field name."""

import re
from collections.abc import Callable
from typing import Any

Reading = Callable[..., dict[str, Any]]


def whole(text: str) -> int:
    return int(text.replace(",", "").replace("k", "000"))


WORDS: dict[str, Reading] = {
    r"(cls|mlr|cross-encoder)": lambda kind: {"representation": kind},
    r"agg\* of (\d+) beside CLS of (\d+)": lambda agg, cls: {
        "representation": "agg",
        "agg_kind": "star",
        "agg_dim": int(agg),
        "cls_dim": int(cls),
    },
    r"loss L \+ (\S+) L_agg \+ (\S+) L_cls": lambda agg, cls: {
        "agg_weight": float(agg),
        "cls_weight": float(cls),
    },
    r"(shared|separate)": lambda how: {"untie": how == "separate"},
    r"(raw|L2-normalised)": lambda how: {"l2_norm": how != "raw"},
    r"T (\S+)": lambda value: {"temperature": float(value)},
    r"(in-batch|full) contrastive": lambda kind: {"contrastive": kind},
    r"([\d,]+) queries": lambda n: {"batch_size": whole(n)},
    r"1\+(\d+)": lambda negatives: {"group_size": 1 + int(negatives)},
    r"(\d+) passages": lambda n: {"group_size": int(n)},
    r"lr (\S+)": lambda value: {"lr": float(value)},
    r"(\d+) epochs?": lambda n: {"epochs": int(n)},
    r"(\d+k) steps": lambda n: {"max_steps": whole(n)},
    r"warm-up (\d+) %": lambda percent: {"warmup_ratio": int(percent) / 100},
    r"warm-up ([\d,]+)": lambda n: {"warmup_steps": whole(n)},
    r"q (\d+) / p (\d+)": lambda q, p: {
        "query_max_length": int(q),
        "passage_max_length": int(p),
    },
    r"length (\d+) of both": lambda n: {"pair_max_length": int(n)},
    r"clip (\S+)": lambda value: {"max_grad_norm": float(value)},
    r"decay (\S+)": lambda value: {"weight_decay": float(value)},
    r"eps (\S+)": lambda value: {"adam_epsilon": float(value)},
    r"seed (\d+)": lambda n: {"seed": int(n)},
    r"positives? (rotate|first|random)": lambda choice: {"positive": choice},
    r"negatives (window|shuffle)": lambda choice: {"negative": choice},
    r"pool (\d+)": lambda n: {"negative_pool": int(n)},
    r"([\d,]+) training queries": lambda n: {"train_queries": whole(n)},
    r"text only": lambda: {"fields": ("text",)},
    r"title, space, text": lambda: {"fields": ("title", "text"), "join": " "},
    r"title, colon, text": lambda: {"fields": ("title", "text"), "join": ": "},
    r"title \[SEP\] text": lambda: {"fields": ("title", "text"), "join": "sep"},
    r"title and text as a pair": lambda: {"fields": ("title", "text"), "join": "pair"},
    r"quotes replaced": lambda: {"normalize_quotes": True},
    r"\{(\d+),(\d+)\}": lambda low, last: {"layers": (int(last), int(low))},
    r"(self-contrastive|multi-vector)": lambda kind: {"reduction": kind},
    r"lambda (\S+)": lambda value: {"layer_weight": float(value)},
    r"chunks of (\d+) queries with their (\d+) passages": lambda q, p: {
        "grad_cache": True,
        "q_chunk": int(q),
        "p_chunk": int(p),
    },
    r"best dev loss": lambda: {"best_by": "dev-loss"},
    r"KL \+ (\S+) contrastive": lambda weight: {
        "distillation": "kl",
        "contrastive_weight": float(weight),
    },
    r"soft cross-entropy \+ (\S+) contrastive": lambda weight: {
        "distillation": "soft-cross-entropy",
        "contrastive_weight": float(weight),
    },
    r"MSE of the cosine and label / (\d+)": lambda scale: {
        "objective": "cosine-mse",
        "label_scale": float(scale),
    },
    r"triplets with margin (\d+)": lambda margin: {"objective": "triplet", "margin": float(margin)},
    r"R-Drop": lambda: {"r_drop": 1.0},
}


def read_row(row: str) -> dict[str, Any]:
    """The settings a row names; every part of it must be understood, and none said twice."""
    settings: dict[str, Any] = {}
    for part in (part.strip() for part in row.split(";")):
        found = [
            reading(*match.groups())
            for words, reading in WORDS.items()
            if (match := re.fullmatch(words, part))
        ]
        assert len(found) == 1, f"{part!r} is understood in {len(found)} ways"
        assert not settings.keys() & found[0].keys(), f"{part!r} says something again"
        settings |= found[0]
    if "negative" in settings:  # every published loader repeats negatives where there are too few
        settings["fill_negatives"] = "repeat"
    return settings
