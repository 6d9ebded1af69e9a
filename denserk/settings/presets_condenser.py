"""Condenser's and coCondenser's fine-tuning settings.

"Condenser: a Pre-training Architecture for Dense Retrieval" (Gao and Callan, 2021), section 4 and
appendix; "Unsupervised Corpus Aware Language Model Pre-training for Dense Passage Retrieval" (Gao
and Callan, 2022); Tevatron and DPR, to which they point.
"""

from denserk.settings.preset import Preset, Source, marked

CONDENSER, COCONDENSER = "Condenser", "coCondenser"
CLS = {
    "representation": "cls",
    "l2_norm": False,
    "temperature": 1.0,
    "contrastive": "in-batch",
    "fields": ("title", "text"),
    "weight_decay": 0.0,
}
MARCO = CLS | {
    "untie": False,
    "join": "sep",
    "query_max_length": 32,
    "passage_max_length": 128,
    "batch_size": 8,
    "group_size": 8,
    "positive": "rotate",
    "negative": "window",
    "fill_negatives": "repeat",
    "lr": 5e-6,
    "epochs": 3,
    "warmup_ratio": 0.1,
    "max_grad_norm": 1.0,
}
FROM_TOOLKIT = marked(
    Source.CITED,
    *("positive", "negative", "fill_negatives", "warmup_ratio", "max_grad_norm", "weight_decay"),
)
QUESTIONS = CLS | {
    "untie": True,
    "join": "pair",
    "normalize_quotes": True,
    "query_max_length": 32,
    "passage_max_length": 256,
    "batch_size": 128,
    "group_size": 2,
    "positive": "first",
    "negative": "shuffle",
    "fill_negatives": "repeat",
    "lr": 1e-5,
    "epochs": 40,
    "warmup_steps": 1237,
    "max_grad_norm": 2.0,
    "seed": 12345,
}
FROM_DPR = marked(
    Source.CITED,
    *("join", "normalize_quotes", "positive", "negative", "fill_negatives"),
    *("warmup_steps", "max_grad_norm", "weight_decay", "seed"),
)

TITLED = "MS MARCO passages with titles (RocketQA's release)"
BM25 = TITLED + "; 30 negatives a query, sampled from BM25"
UNION = TITLED + "; two rows a query: BM25 negatives, and mined ones"
TOOLKIT = "Sampling, warm-up, clipping and decay are those of Tevatron, to which the paper points."
AS_DPR = "Sampling, text, warm-up, clipping and seed are DPR's. DPR reads 256 tokens of a query."
MINING = (
    "Mine with the model trained on BM25 negatives: depth 200, positives removed, 30 sampled.",
    "Start from the pre-trained weights again, with both files: --train-data twice.",
)
SENTENCES = {"representation": "cls", "batch_size": 16, "lr": 2e-5}
FROM_SENTENCES = marked(Source.LIBRARY, "batch_size") | marked(Source.GUESS, "representation")
DRAWS = (
    "The paper's sizes: --train-queries 500, 1000, 10000. Its draws and seeds are not published."
)

PRESETS = (
    Preset(
        "condenser-marco",
        CONDENSER,
        "MS MARCO: BM25 negatives",
        Source.PAPER,
        "Luyu/condenser",
        BM25,
        MARCO,
        FROM_TOOLKIT,
        (TOOLKIT,),
    ),
    Preset(
        "condenser-marco-low-data",
        CONDENSER,
        "MS MARCO: 1,000 training queries",
        Source.PAPER,
        "Luyu/condenser",
        BM25,
        MARCO | {"train_queries": 1000, "epochs": 40},
        FROM_TOOLKIT | marked(Source.DECISION, "epochs"),
        (
            "The paper takes the best of 5, 10 and 40 epochs, as chosen on BERT.",
            DRAWS,
            TOOLKIT,
        ),
    ),
    Preset(
        "condenser-marco-hard-negatives",
        CONDENSER,
        "MS MARCO: BM25 and mined negatives",
        Source.PAPER,
        "Luyu/condenser",
        UNION,
        MARCO,
        FROM_TOOLKIT,
        (*MINING, "3 epochs are the paper's; Tevatron's example takes 2 on both files.", TOOLKIT),
    ),
    *(
        preset
        for name, of, mined in (
            ("nq", "Natural Questions", "DPR's mined set (nq-adv-hn-train)"),
            ("tqa", "TriviaQA", "negatives mined with the first model"),
        )
        for preset in (
            Preset(
                f"condenser-{name}",
                CONDENSER,
                f"{of}: DPR's negatives, separate encoders",
                Source.PAPER,
                "Luyu/condenser",
                f"DPR's training file of {of}, passages with titles",
                QUESTIONS,
                FROM_DPR,
                (AS_DPR,),
            ),
            Preset(
                f"condenser-{name}-low-data",
                CONDENSER,
                f"{of}: 1,000 training questions",
                Source.PAPER,
                "Luyu/condenser",
                f"DPR's training file of {of}, passages with titles",
                QUESTIONS | {"train_queries": 1000},
                FROM_DPR,
                (DRAWS, AS_DPR),
            ),
            Preset(
                f"condenser-{name}-hard-negatives",
                CONDENSER,
                f"{of}: DPR's and mined negatives",
                Source.PAPER,
                "Luyu/condenser",
                f"DPR's training file of {of}, and {mined}",
                QUESTIONS | {"epochs": 20},
                FROM_DPR | marked(Source.CITED, "epochs"),
                (MINING[1], "20 epochs are those of Tevatron's example.", AS_DPR),
            ),
        )
    ),
    Preset(
        "cocondenser-marco",
        COCONDENSER,
        "MS MARCO: BM25 negatives",
        Source.PAPER,
        "Luyu/co-condenser-marco",
        BM25,
        MARCO,
        FROM_TOOLKIT,
        (TOOLKIT,),
    ),
    Preset(
        "cocondenser-marco-hard-negatives",
        COCONDENSER,
        "MS MARCO: BM25 and mined negatives",
        Source.PAPER,
        "Luyu/co-condenser-marco",
        UNION,
        MARCO,
        FROM_TOOLKIT | marked(Source.DECISION, "epochs"),
        (*MINING, "3 epochs as for Condenser; Tevatron's example takes 2 on both files.", TOOLKIT),
    ),
    Preset(
        "cocondenser-nq",
        COCONDENSER,
        "Natural Questions: DPR's negatives, Tevatron's learning rate",
        Source.PAPER,
        "Luyu/co-condenser-wiki",
        "DPR's training file of Natural Questions, passages with titles",
        QUESTIONS | {"lr": 5e-6},
        FROM_DPR | marked(Source.CITED, "lr"),
        ("The learning rate is that of Tevatron's example; all else as condenser-nq.", AS_DPR),
    ),
    Preset(
        "cocondenser-nq-hard-negatives",
        COCONDENSER,
        "Natural Questions: DPR's and mined negatives",
        Source.PAPER,
        "Luyu/co-condenser-wiki",
        "DPR's training file of Natural Questions, and negatives mined with the first model",
        QUESTIONS | {"lr": 5e-6, "epochs": 20},
        FROM_DPR | marked(Source.CITED, "lr", "epochs"),
        (MINING[1], "Learning rate and epochs are those of Tevatron's example.", AS_DPR),
    ),
    Preset(
        "condenser-sts-b",
        CONDENSER,
        "sentence pairs of STS-b (Table 1)",
        Source.PAPER,
        "Luyu/condenser",
        "pairs of sentences with a label from 0 to 5",
        SENTENCES | {"objective": "cosine-mse", "label_scale": 5.0, "epochs": 4},
        FROM_SENTENCES,
        (
            "The authors do not name the pooling: mean is the other.",
            "Low data: the best of 4 and 8 epochs, as chosen on BERT.",
        ),
    ),
    Preset(
        "condenser-wiki-sections",
        CONDENSER,
        "triplets of Wikipedia sections (Table 2)",
        Source.PAPER,
        "Luyu/condenser",
        "triplets: a sentence, one of the same section, one of another",
        SENTENCES | {"objective": "triplet", "margin": 5.0, "epochs": 1},
        FROM_SENTENCES,
        ("Low data: the best of 1, 4 and 8 epochs, as chosen on BERT.",),
    ),
)
