"""The measures of a validation against literal restatements, one score at a time."""

import math

import pytest
import torch

from denserk.config.encoding import PairSettings, TextSettings
from denserk.data.batches import PairJoiner, pad
from denserk.data.tokenization import TextTokenizer, load_tokenizer
from denserk.data.training_data import prepare
from denserk.errors import InputError
from denserk.models.cross_encoder import reranker_to_train
from denserk.training.validation import (
    DevSet,
    dev_sets,
    measure,
    measure_groups,
    reciprocal_ranks,
    token_budget,
)
from tests.support.finetuning import run_of
from tests.support.retrievers import retriever
from tests.support.tiny_models import tiny_tokenizer
from tests.support.toy import PASSAGES as TEXTS
from tests.support.toy import VOCABULARY
from tests.support.training_examples import inline, jsonl

QUERIES = [[2, 10 + n, 20 + n, 3] for n in range(5)]
PASSAGES = [[2, *range(10 + n, 14 + 2 * n), 3] for n in range(12)]
RELEVANT = [[0], [3, 7], [11], [5], [2, 4, 6]]
GROUPS = torch.tensor([[0, 1], [3, 8], [11, 2], [5, -1], [2, 10]])
DEV = DevSet(QUERIES, PASSAGES, (0, 0), RELEVANT, GROUPS)


def scores_by_hand(model):
    """Each query against each passage, alone: by the best of the passage's stored vectors."""
    return [
        [
            max(
                torch.dot(model.query(pad([query], 0))[0].float(), vector.float()).item()
                for vector in model.passage.stored_vectors(pad([passage], 0))[0]
            )
            for passage in PASSAGES
        ]
        for query in QUERIES
    ]


def measured_by_hand(scores, batch, temperature):
    losses, positions, reciprocal = [], [], []
    for number, row in enumerate(scores):
        start = number // batch * batch
        passages = set(GROUPS[start : start + batch].flatten().tolist()) - {-1}
        among = [row[p] / temperature for p in passages]
        positive = row[GROUPS[number, 0]]
        losses.append(math.log(sum(map(math.exp, among))) - positive / temperature)
        positions.append(sum(other > positive for other in row))
        ranked = [p for _, p in sorted((-score, p) for p, score in enumerate(row))][:10]
        found = [place for place, p in enumerate(ranked, start=1) if p in RELEVANT[number]]
        reciprocal.append(1 / found[0] if found else 0.0)

    def mean(values):
        return sum(values) / len(values)

    return {"RR@10": mean(reciprocal), "dev-loss": mean(losses), "avg-rank": mean(positions)}


@pytest.mark.parametrize("name", ["cls", "mlr-self-contrastive", "mlr-multi-vector"])
@pytest.mark.parametrize("batch", [2, 5])
def test_measures_are_their_definitions(tiny, name, batch):
    model = retriever(tiny("bert"), name).eval()
    with torch.no_grad():
        expected = measured_by_hand(scores_by_hand(model), batch, 0.7)
    assert measure(model, token_budget(), [DEV], batch, 0.7) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("relevant", "expected"),
    [([0], 1.0), ([3], 1 / 2), ([4], 1 / 3), ([4, 3], 1 / 2), ([11], 1 / 10), ([1], 0.0)],
)
def test_equal_scores_stand_in_the_order_of_rows(relevant, expected):
    scores = torch.tensor([[5.0, -9.0, 0.0, 2.0, 2.0, *[1.0] * 5, 0.5, 0.25]])
    assert reciprocal_ranks(scores, [relevant]) == [expected]


def test_measures_are_within_a_query_s_group(tiny):
    reranker = reranker_to_train(tiny(), seed=3).eval()
    joiner = PairJoiner(load_tokenizer(tiny()), TextSettings(), PairSettings())
    groups = torch.tensor([list(range(11)), [11, *range(10)]])
    dev = DevSet(QUERIES[:2], PASSAGES, (0, 0), [[0], [11]], groups)
    measured = measure_groups(reranker, joiner, token_budget(), [dev])
    losses, before = [], []
    with torch.no_grad():
        for query, rows in zip(QUERIES[:2], groups.tolist(), strict=True):
            pairs = [joiner.join(query, PASSAGES[row]) for row in rows]
            scores = torch.cat([reranker(joiner.batch([pair])) for pair in pairs])
            losses.append(-scores.log_softmax(0)[0].item())
            before.append(sum(score > scores[0] for score in scores.tolist()))
    assert measured == {
        "dev-loss": pytest.approx(sum(losses) / 2, rel=1e-6),
        "avg-rank": sum(before) / 2,
        "RR@10": pytest.approx(sum(1 / (b + 1) if b < 10 else 0 for b in before) / 2),
    }


@pytest.fixture(scope="module")
def tokenizers():
    made = TextTokenizer(tiny_tokenizer("bert", VOCABULARY), TextSettings())
    return made, made


def test_groups_are_the_first_positive_and_the_top_negatives(tmp_path, tokenizers):
    examples = [inline(number, 2, 3) for number in range(4)]
    data = jsonl(tmp_path / "dev.jsonl", examples)
    run = run_of(tmp_path / "out", "model", data)
    (dev,) = dev_sets(run, prepare(run, tmp_path / "dev", *tokenizers), tokenizers)
    assert dev.groups is not None
    tokenizer = tiny_tokenizer("bert", VOCABULARY)

    def text(row):
        return tokenizer.decode(list(dev.passages[row]), skip_special_tokens=True)

    for example, group, relevant in zip(examples, dev.groups.tolist(), dev.relevant, strict=True):
        positives, negatives = example["positive_passages"], example["negative_passages"]
        expected = [positives[0], *negatives[:2]]
        assert [text(row) for row in group] == [each["text"] for each in expected]
        assert [text(row) for row in relevant] == [each["text"] for each in positives]
    assert (len(dev.queries), len(dev.passages)) == (4, 20)


def test_a_collection_is_sorted_by_descending_id(toy, tmp_path, tokenizers):
    files = {"dev_corpus": "corpus.jsonl", "dev_topics": "queries.tsv", "dev_qrels": "qrels.txt"}
    given = {name: str(toy / file) for name, file in files.items()}
    run = run_of(tmp_path / "out", "model", "train", **given)
    (dev,) = dev_sets(run, None, tokenizers)
    docids = sorted(TEXTS, reverse=True)
    assert docids.index("d10") > docids.index("d2")
    assert len(dev.passages) == len(docids)
    found = [{docids[row] for row in rows} for rows in dev.relevant]
    assert found == [{"d3"}, {"d1", "d5"}, {"d4"}]
    assert dev.groups is None
    (toy / "qrels.txt").write_text("x1 0 d3 1\n")
    with pytest.raises(InputError, match="no relevance judgment that joins a query"):
        dev_sets(run, None, tokenizers)
