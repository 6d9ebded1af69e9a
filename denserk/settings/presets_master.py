"""MASTER's fine-tuning settings as the paper has them: those of SimLM, to which it points.

"MASTER: Multi-task Pre-trained Bottlenecked Masked Autoencoders are Better Dense Retrievers" (Zhou
et al., 2023), section 4; "SimLM: Pre-training with Representation Bottleneck for Dense Passage
Retrieval" (Wang et al., 2023), its appendix and scripts. The scripts released for MASTER do
otherwise: `presets_master_released`.
"""

from denserk.settings.preset import Preset, Source, marked

PAPER = "MASTER"
MARCO_START = "lx865712528/master-base-pretrained-msmarco"
WIKI_START = "lx865712528/master-base-pretrained-wiki"
ELECTRA = "google/electra-base-discriminator"
BM25 = "MS MARCO passages with titles (RocketQA's release); BM25 negatives"
MINED = "MS MARCO passages with titles; negatives from the {} model's top 200"
SCORED = "a teacher's score for every passage (master-{}-reranker{})"

TEXT = {"fields": ("title", "text"), "weight_decay": 0.0}
SIMLM = TEXT | {
    "representation": "cls",
    "l2_norm": True,
    "untie": False,
    "temperature": 0.02,
    "contrastive": "full",
    "join": "pair",
    "query_max_length": 32,
    "negative": "window",
    "fill_negatives": "repeat",
    "warmup_steps": 1000,
    "max_grad_norm": 1.0,
}
SIMLM_RERANKER = TEXT | {
    "representation": "cross-encoder",
    "join": ": ",
    "query_max_length": 32,
    "negative": "window",
    "fill_negatives": "repeat",
    "lr": 3e-5,
    "warmup_steps": 1000,
    "max_grad_norm": 1.0,
    "r_drop": 1.0,
    "seed": 987,
}
FROM_SIMLM = marked(Source.LIBRARY, "weight_decay", "max_grad_norm")
FROM_RERANKER = FROM_SIMLM | marked(Source.DECISION, "query_max_length")

MARCO = SIMLM | {
    "passage_max_length": 144,
    "batch_size": 64,
    "group_size": 16,
    "positive": "rotate",
    "negative_pool": 200,
    "lr": 2e-5,
    "epochs": 3,
    "seed": 1234,
}
NQ = SIMLM | {
    "normalize_quotes": True,
    "passage_max_length": 192,
    "batch_size": 64,
    "group_size": 16,
    "positive": "first",
    "negative_pool": 100,
    "lr": 1e-5,
    "max_steps": 20_000,
    "seed": 5678,
}
FROM_NQ = FROM_SIMLM | marked(Source.DECISION, "batch_size", "normalize_quotes")
KD = {"distillation": "kl", "lr": 3e-5, "seed": 123}

AS_SIMLM = "Settings of SimLM: the paper says that it follows them."
AGAIN = "Start from the pre-trained weights again, not from the model of the stage before."
RANDOM = "SimLM adds 10 random passages to each list of negatives."
WARM_T = (
    "SimLM also lowers the temperature from 1 to 0.02 over the warm-up; here it is 0.02 at once."
)
FACTOR = (
    "SimLM sends gradients through {} of a query's {} passages, the best-scored; here through all."
)
HALF = "The authors trained in mixed float16: --precision float16 on a GPU."
CACHED = "This batch wants --grad-cache on one GPU."
QUESTIONS = "DPR's training file of {}, passages with titles"
ANSWERED = "the file mined with the first model: top 100, gold first, hits with an answer positives"

PRESETS = (
    Preset(
        "master-marco-retriever1",
        PAPER,
        "MS MARCO, as SimLM: BM25 negatives",
        Source.CITED,
        MARCO_START,
        BM25,
        MARCO,
        FROM_SIMLM,
        (AS_SIMLM, RANDOM, HALF),
    ),
    Preset(
        "master-marco-retriever2",
        PAPER,
        "MS MARCO, as SimLM: mined negatives",
        Source.CITED,
        MARCO_START,
        MINED.format("first"),
        MARCO,
        FROM_SIMLM,
        (AS_SIMLM, AGAIN, RANDOM, HALF),
    ),
    Preset(
        "master-marco-reranker",
        PAPER,
        "MS MARCO, as SimLM: the teacher, with R-Drop",
        Source.CITED,
        ELECTRA,
        MINED.format("second"),
        SIMLM_RERANKER
        | {
            "passage_max_length": 192,
            "pair_max_length": 192,
            "batch_size": 64,
            "group_size": 64,
            "positive": "rotate",
            "negative_pool": 200,
            "epochs": 3,
        },
        FROM_RERANKER,
        (AS_SIMLM, FACTOR.format(16, 64), RANDOM, HALF),
    ),
    Preset(
        "master-marco-distil",
        PAPER,
        "MS MARCO, as SimLM: learning from the reranker",
        Source.CITED,
        MARCO_START,
        f"{MINED.format('second')}; {SCORED.format('marco', '')}",
        MARCO
        | KD
        | {"group_size": 24, "negative_pool": 30, "contrastive_weight": 0.2, "epochs": 6},
        FROM_SIMLM,
        (AS_SIMLM, AGAIN, "30 negatives of each query have scores.", CACHED, HALF),
    ),
    Preset(
        "master-nq-retriever1",
        PAPER,
        "Natural Questions, as SimLM: BM25 and mined negatives together",
        Source.CITED,
        WIKI_START,
        f"{QUESTIONS.format('Natural Questions')}; {ANSWERED}",
        NQ,
        FROM_NQ,
        (AS_SIMLM, "Both files: --train-data twice.", WARM_T, HALF),
    ),
    Preset(
        "master-nq-retriever2",
        PAPER,
        "Natural Questions: a second round, with the first one's settings",
        Source.DECISION,
        WIKI_START,
        f"{QUESTIONS.format('Natural Questions')}; {ANSWERED}",
        NQ,
        steps=("SimLM has no second round on these questions; MASTER reports one.", AGAIN, WARM_T),
    ),
    Preset(
        "master-nq-reranker",
        PAPER,
        "Natural Questions, as SimLM: the teacher, with R-Drop",
        Source.CITED,
        ELECTRA,
        f"{QUESTIONS.format('Natural Questions')}; {ANSWERED}",
        SIMLM_RERANKER
        | {
            "normalize_quotes": True,
            "passage_max_length": 224,
            "pair_max_length": 224,
            "batch_size": 64,
            "group_size": 32,
            "positive": "first",
            "negative_pool": 100,
            "max_steps": 20_000,
        },
        FROM_RERANKER | marked(Source.DECISION, "batch_size", "normalize_quotes"),
        (AS_SIMLM, FACTOR.format(16, 32), HALF),
    ),
    Preset(
        "master-nq-distil",
        PAPER,
        "Natural Questions, as SimLM: learning from the reranker",
        Source.CITED,
        WIKI_START,
        f"{QUESTIONS.format('Natural Questions')}; {ANSWERED}; {SCORED.format('nq', '')}",
        {name: value for name, value in NQ.items() if name != "max_steps"}
        | KD
        | {"contrastive_weight": 1.0, "epochs": 15},
        FROM_NQ,
        (AS_SIMLM, AGAIN, WARM_T, HALF),
    ),
)
