"""MLR's fine-tuning settings.

"Investigating Multi-layer Representations for Dense Passage Retrieval" (Xie and Lukasiewicz, 2025),
section 5; the authors' scripts; RetroMAE, from which some of the runs start.
"""

from denserk.settings.preset import Preset, Source, marked, marks_of

PAPER = "MLR"
COMMON = {
    "representation": "mlr",
    "layers": (12, 10),
    "reduction": "self-contrastive",
    "l2_norm": False,
    "untie": True,
    "temperature": 1.0,
    "contrastive": "in-batch",
    "fields": ("title", "text"),
    "negative": "shuffle",
    "fill_negatives": "repeat",
    "warmup_ratio": 0.05,
    "weight_decay": 0.0,
    "max_grad_norm": 2.0,
    "adam_epsilon": 1e-8,
    "seed": 12345,
    "grad_cache": True,
    "q_chunk": 16,
}
FROM_CODE = marked(
    Source.RELEASED,
    *("negative", "fill_negatives", "positive", "negative_pool", "normalize_quotes", "join"),
    *("warmup_ratio", "weight_decay", "max_grad_norm", "adam_epsilon", "seed"),
    *("grad_cache", "q_chunk", "p_chunk"),
)
QUESTIONS = COMMON | {
    "join": "pair",
    "normalize_quotes": True,
    "query_max_length": 256,
    "passage_max_length": 256,
    "batch_size": 128,
    "group_size": 2,
    "positive": "first",
    "negative_pool": 200,
    "p_chunk": 32,
    "epochs": 40,
}
BERT = QUESTIONS | {"lr": 2e-5, "layer_weight": 1.0}
MULTI_VECTOR = {"layers": (12, 8), "reduction": "multi-vector"}
T5 = QUESTIONS | MULTI_VECTOR | {"lr": 5e-4}
RETROMAE = QUESTIONS | {"lr": 5e-6, "layer_weight": 0.1}
MINED = RETROMAE | {"epochs": 20, "negative_pool": 50}
BEST = {"best_by": "dev-loss"}
MARCO = COMMON | {
    "join": "pair",
    "query_max_length": 32,
    "passage_max_length": 140,
    "batch_size": 128,
    "group_size": 16,
    "positive": "rotate",
    "negative_pool": 200,
    "p_chunk": 256,
    "lr": 2e-5,
    "layer_weight": 0.01,
    "epochs": 4,
}
FROM_MARCO = FROM_CODE | {
    **marked(Source.LOST, "lr"),
    **marked(Source.RELEASED, "layer_weight", "query_max_length"),
    **marked(Source.DECISION, "passage_max_length", "positive"),
    **marked(Source.GUESS, "start"),
}
BEIR = COMMON | {
    "untie": False,
    "join": " ",
    "query_max_length": 32,
    "passage_max_length": 144,
    "batch_size": 128,
    "group_size": 2,
    "positive": "rotate",
    "p_chunk": 32,
    "lr": 1e-5,
    "layer_weight": 0.1,
    "epochs": 10,
}
FROM_BEIR = FROM_CODE | {
    **marked(Source.LOST, "lr", "layer_weight"),
    **marked(Source.GUESS, "batch_size", "group_size", "untie", "start"),
    **marked(Source.DECISION, "query_max_length", "passage_max_length", "positive"),
}

LAYERS = "The paper also has all twelve layers; the --lambda of that run is lost."
COUNTS = "For 4, 6 and 8 vectors the paper takes the last layers: --layers 9,10,11,12 and so on."
WARMUP = "The scripts pass 1,237 warm-up steps, but 5 % of the steps override them."
ONE_METRIC = "The best weights by dev loss, which the authors' later change to average rank leaves."
DATA_SETS = (
    ("nq", "Natural Questions", "58,880"),
    ("tqa", "TriviaQA", "60,413"),
    ("squad", "SQuAD", "70,096"),
)


def _questions(name: str, of: str, rows: str) -> tuple[Preset, ...]:
    file = f"DPR's training file of {of} ({rows} questions with a positive), passages with titles"
    mined = "the file mined with the first model: top 100, hits with an answer as positives"
    best = {} if name == "tqa" else BEST
    best_mae = BEST if name == "squad" else {}
    kept = (ONE_METRIC,) if best else ("The last weights are kept.",)
    kept_mae = (ONE_METRIC,) if best_mae else ("The last weights are kept.",)
    retromae = marked(Source.RELEASED, "lr", "epochs", "layer_weight", "start", "best_by")
    return (
        Preset(
            f"mlr-{name}-bert",
            PAPER,
            f"{of}: BERT, one vector, self-contrastive over layers 10 and 12",
            Source.PAPER,
            "bert-base-uncased",
            file,
            BERT | best,
            marks_of(BERT, FROM_CODE | marked(Source.RELEASED, "layer_weight")),
            (LAYERS, WARMUP, *kept),
        ),
        Preset(
            f"mlr-{name}-bert-multi-vector",
            PAPER,
            f"{of}: BERT, two vectors a passage, of layers 8 and 12",
            Source.PAPER,
            "bert-base-uncased",
            file,
            QUESTIONS | MULTI_VECTOR | {"lr": 2e-5} | best,
            marks_of(QUESTIONS, FROM_CODE | marked(Source.RELEASED, "layers")),
            (COUNTS, WARMUP, *kept),
        ),
        Preset(
            f"mlr-{name}-t5",
            PAPER,
            f"{of}: T5's encoder, two vectors a passage, of layers 8 and 12",
            Source.PAPER,
            "google-t5/t5-base",
            file,
            T5 | best,
            marks_of(T5, FROM_CODE | marked(Source.RELEASED, "layers")),
            (COUNTS, WARMUP, *kept),
        ),
        Preset(
            f"mlr-{name}-retromae",
            PAPER,
            f"{of}: RetroMAE, first stage, DPR's negatives",
            Source.PAPER,
            "Shitao/RetroMAE",
            file,
            RETROMAE | best_mae,
            marks_of(RETROMAE | best_mae, FROM_CODE | retromae),
            (WARMUP, *kept_mae),
        ),
        Preset(
            f"mlr-{name}-retromae-hard-negatives",
            PAPER,
            f"{of}: RetroMAE, second stage, DPR's and mined negatives",
            Source.PAPER,
            "Shitao/RetroMAE",
            f"{file}, then {mined}",
            MINED | best_mae,
            marks_of(MINED | best_mae, FROM_CODE | retromae),
            (
                "Start from the pre-trained weights again, with both files: --train-data twice.",
                "The mined file's first positive is the best-ranked hit with an answer; questions "
                "without one are dropped.",
                WARMUP,
                *kept_mae,
            ),
        ),
    )


TITLED = "MS MARCO passages with titles (RocketQA's release)"
LOST_LR = "The learning rate, lost in the copy that was read, is RetroMAE's, and so is the length."
ALSO_NDCG = "--lambda 1 gives a better nDCG@10."

PRESETS = (
    *(preset for row in DATA_SETS for preset in _questions(*row)),
    Preset(
        "mlr-marco",
        PAPER,
        "MS MARCO: RetroMAE, first stage, BM25 negatives",
        Source.PAPER,
        "Shitao/RetroMAE_MSMARCO",
        f"{TITLED}; BM25 negatives",
        MARCO,
        marks_of(MARCO, FROM_MARCO),
        (LOST_LR, ALSO_NDCG, "The authors visit every positive once an epoch.", WARMUP),
    ),
    Preset(
        "mlr-marco-hard-negatives",
        PAPER,
        "MS MARCO: RetroMAE, second stage, mined negatives",
        Source.PAPER,
        "Shitao/RetroMAE_MSMARCO",
        f"{TITLED}; negatives from the first model's top 1,000, positives removed",
        MARCO | {"negative_pool": 100},
        marks_of(MARCO, FROM_MARCO),
        (
            "Start from the pre-trained weights again.",
            LOST_LR,
            ALSO_NDCG,
            "The authors visit every positive once an epoch.",
            WARMUP,
        ),
    ),
    Preset(
        "mlr-beir",
        PAPER,
        "MS MARCO for BEIR: RetroMAE, one encoder for both sides",
        Source.PAPER,
        "Shitao/RetroMAE",
        "MS MARCO passages with titles; the code can read sentence-transformers' mined negatives",
        BEIR,
        marks_of(BEIR, FROM_BEIR),
        (
            "Learning rate and lambda, lost in the copy that was read, and the lengths: RetroMAE's "
            "rate and lengths, and the lambda of its other runs.",
            WARMUP,
        ),
    ),
)
