import pytest
import torch

from denserk.config.encoding import PairSettings, TextSettings
from denserk.data.pairs import PairJoiner
from denserk.data.tokenization import load_tokenizer
from denserk.models.cross_encoder import Reranker
from denserk.models.stored_model import StoredEncoder
from denserk.training.validation import DevSet, measure_groups

QUERIES = [[2, 9, 14, 3], [2, 17, 3]]
PASSAGES = [[2, 5 + row, 6 + row, 3] for row in range(12)]


def test_measures_are_within_a_query_s_group(tiny):
    reranker = Reranker.begin(StoredEncoder.read(tiny()), seed=3).eval()
    joiner = PairJoiner(load_tokenizer(tiny()), TextSettings(), PairSettings())
    groups = torch.tensor([list(range(11)), [11, *range(10)]])
    dev = DevSet(QUERIES, PASSAGES, (0, 0), [[0], [11]], groups)
    measured = measure_groups(reranker, joiner, dev, torch.device("cpu"))
    losses, before = [], []
    with torch.no_grad():
        for query, rows in zip(QUERIES, groups.tolist(), strict=True):
            pairs = [joiner.join(query, PASSAGES[row]) for row in rows]
            scores = torch.cat([reranker(joiner.batch([pair])) for pair in pairs])
            losses.append(-scores.log_softmax(0)[0].item())
            before.append(sum(score > scores[0] for score in scores.tolist()))
    assert measured == {
        "dev-loss": pytest.approx(sum(losses) / 2, rel=1e-6),
        "avg-rank": sum(before) / 2,
        "RR@10": pytest.approx(sum(1 / (b + 1) if b < 10 else 0 for b in before) / 2),
    }
