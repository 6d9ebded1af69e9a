"""Aggretriever's fine-tuning settings.

"Aggretriever: A Simple Approach to Aggregate Textual Representations for Robust Dense Passage
Retrieval" (Lin, Li and Lin, TACL 2023), sections 4 and 5; the authors' code; DPR's paper and code,
and Tevatron's recipe, for open-domain questions.
"""

from denserk.settings.preset import Preset, Source, marked, marks_of

PAPER = "Aggretriever"
AGG = {
    "representation": "agg",
    "agg_kind": "star",
    "agg_dim": 640,
    "cls_dim": 128,
    "l2_norm": False,
    "untie": False,
    "temperature": 1.0,
    "contrastive": "in-batch",
    "cls_weight": 0.5,
    "agg_weight": 0.5,
    "negative": "window",
    "fill_negatives": "repeat",
    "warmup_ratio": 0.1,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "adam_epsilon": 1e-8,
    "seed": 42,
}
"""The model and its loss; the optimiser's settings are Tevatron's, which the authors kept."""
FROM_CODE = marked(
    Source.RELEASED,
    *("cls_weight", "agg_weight", "negative", "fill_negatives", "positive"),
    *("warmup_ratio", "weight_decay", "max_grad_norm", "adam_epsilon", "seed"),
)
MARCO = AGG | {
    "fields": ("text",),
    "query_max_length": 32,
    "passage_max_length": 128,
    "batch_size": 8,
    "group_size": 8,
    "positive": "rotate",
    "lr": 5e-6,
    "epochs": 3,
}
QUESTIONS = AGG | {
    "fields": ("title", "text"),
    "join": " ",
    "normalize_quotes": True,
    "query_max_length": 32,
    "passage_max_length": 156,
    "batch_size": 128,
    "group_size": 2,
    "positive": "first",
    "lr": 1e-5,
    "epochs": 40,
}
FROM_RECIPE = FROM_CODE | {
    **marked(Source.CITED, "batch_size", "group_size", "epochs", "positive", "warmup_ratio"),
    **marked(Source.CITED, "fields", "join"),
    **marked(Source.DECISION, "lr", "normalize_quotes"),
}
DPR = {name: value for name, value in QUESTIONS.items() if name != "warmup_ratio"} | {
    "lr": 2e-5,
    "warmup_steps": 1237,
    "max_grad_norm": 2.0,
}
FROM_DPR = marks_of(DPR, FROM_RECIPE | marked(Source.CITED, "lr", "warmup_steps", "max_grad_norm"))

BACKBONES = "The paper also starts from bert-base-uncased, Luyu/condenser and Luyu/co-condenser-"
UNTITLED = "MS MARCO passages without titles; BM25 negatives, one record a query with all positives"
HALF = "The authors trained in mixed float16: --precision float16 on a GPU."
RECIPE = (
    "Batch, group and epochs are DPR's; positives, fields and warm-up those of Tevatron's recipe."
)


def _questions(name: str, of: str, rows: str) -> tuple[Preset, Preset]:
    data = f"DPR's training file of {of} ({rows} questions), passages with titles"
    backbones = BACKBONES + "wiki."
    return (
        Preset(
            f"aggretriever-{name}",
            PAPER,
            f"{of}: DPR's negatives, Tevatron's learning rate",
            Source.PAPER,
            "distilbert-base-uncased",
            data,
            QUESTIONS,
            FROM_RECIPE,
            (backbones, RECIPE, HALF),
        ),
        Preset(
            f"aggretriever-{name}-dpr",
            PAPER,
            f"{of}: learning rate, warm-up and clipping of DPR's code",
            Source.PAPER,
            "distilbert-base-uncased",
            data,
            DPR,
            FROM_DPR,
            (backbones, RECIPE, HALF),
        ),
    )


PRESETS = (
    Preset(
        "aggretriever-marco",
        PAPER,
        "MS MARCO: BM25 negatives, all training queries",
        Source.PAPER,
        "distilbert-base-uncased",
        UNTITLED,
        MARCO,
        FROM_CODE,
        (BACKBONES + "marco.", HALF),
    ),
    *_questions("nq", "Natural Questions", "58,880"),
    *_questions("tqa", "TriviaQA", "60,413"),
    Preset(
        "aggretriever-low-data",
        PAPER,
        "MS MARCO: 1,000 training queries",
        Source.PAPER,
        "distilbert-base-uncased",
        UNTITLED,
        MARCO | {"train_queries": 1000, "epochs": 40},
        FROM_CODE,
        (
            "The paper's other size: --train-queries 10000. Its draws and seeds are not published.",
            BACKBONES + "marco.",
            HALF,
        ),
    ),
    Preset(
        "aggretriever-hard-negatives",
        PAPER,
        "MS MARCO: two more epochs on the model's own negatives",
        Source.PAPER,
        "the model that aggretriever-marco made",
        "MS MARCO passages without titles; negatives from the model's own top 200",
        MARCO | {"epochs": 2, "negative_pool": 200},
        FROM_CODE,
        (
            "Mine from the top 200 of every training query; positives removed, no BM25 negatives "
            "mixed in (both inferred).",
            "Warm-up and schedule start anew.",
            HALF,
        ),
    ),
)
