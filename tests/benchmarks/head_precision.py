"""What 16 bits change of a trained Aggretriever: its vectors, and how well they rank.

    python -m tests.benchmarks.head_precision MODEL COLLECTION [--split NAME] [--passages N]

MODEL is a trained Aggretriever, COLLECTION a folder in BEIR layout. Its passages and judged queries
become vectors in float32, with the head alone in bfloat16, and all in bfloat16, and the queries are
searched exactly. Also told: the share of positions whose term weight is not positive, which
denserk's head passes over.

Claimed, and the exit status is 1 where it does not hold: RR@10 moves by at most 0.001 for the head
alone.
"""

import argparse
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from denserk.data.batches import pad
from denserk.formats.sources import read_passages, read_qrels, read_queries
from denserk.modeling.representation import Aggretriever
from denserk.modeling.text_encoder import TextEncoder
from denserk.records import Passage
from denserk.settings.encoding import ComputeSettings, Dtype
from tests.benchmarks.encoding import SAME_RANKS, Vectors, reciprocal_ranks

WAYS = {
    "float32": ComputeSettings(device="cpu"),
    "head in bfloat16": ComputeSettings(device="cpu", head_dtype=Dtype.BFLOAT16),
    "all in bfloat16": ComputeSettings(device="cpu", dtype=Dtype.BFLOAT16),
}


@torch.inference_mode()
def passed_over(encoder: TextEncoder, passages: list[Passage]) -> float:
    """The share of positions after [CLS] whose weight is not positive."""
    side = encoder.passage_side
    own = side.encoder.representation
    assert isinstance(own, Aggretriever)
    batch = pad(side.tokenizer.passages(passages), side.tokenizer.pad_id)
    states = side.encoder.backbone(batch)[:, 1:]
    mask = batch.attention_mask[:, 1:]
    weights = own.term_weights(states, mask)[mask]
    return float((weights <= 0).float().mean())


def cosines(found: Vectors, expected: Vectors) -> Vectors:
    """The cosine of each two rows of the same number."""
    sizes = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    result: Vectors = (found * expected).sum(axis=1) / sizes
    return result


def main() -> None:
    """Measures, and fails where a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("collection", type=Path)
    parser.add_argument("--split", default="dev")
    parser.add_argument("--passages", type=int, default=5000)
    given = parser.parse_args()
    passages = list(islice(read_passages(str(given.collection)), given.passages))
    rows = {passage.docid: row for row, passage in enumerate(passages)}
    right: dict[str, set[int]] = {}
    for qrel in read_qrels(str(given.collection / "qrels" / f"{given.split}.tsv")):
        if qrel.relevance > 0 and qrel.docid in rows:
            right.setdefault(qrel.qid, set()).add(rows[qrel.docid])
    queries = [query for query in read_queries(str(given.collection)) if query.qid in right]
    answers = [right[query.qid] for query in queries]
    start: tuple[Vectors, Vectors, float] | None = None
    wrong = []
    for name, compute in WAYS.items():
        encoder = TextEncoder.load(given.model, compute=compute)
        pair = encoder.encode_passages(passages), encoder.encode_queries(queries)
        rank = float(reciprocal_ranks(*pair, answers).mean())
        if start is None:
            start = (*pair, rank)
            share = passed_over(encoder, passages[:256])
            print(f"{len(queries)} queries among {len(passages)} passages, {share:.0%} passed over")
            print(f"{'':20}{'RR@10':>8}{'cosine: least':>15}{'median':>9}")
        near = np.concatenate([cosines(pair[0], start[0]), cosines(pair[1], start[1])])
        print(f"{name:20}{rank:8.4f}{near.min():15.5f}{np.median(near):9.5f}", flush=True)
        if name == "head in bfloat16" and abs(rank - start[2]) > SAME_RANKS:
            wrong.append(f"{name}: RR@10 {rank:.4f}, in float32 {start[2]:.4f}")
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
