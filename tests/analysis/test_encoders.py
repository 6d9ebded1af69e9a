import csv
import json
import time
from math import sqrt

import numpy as np
import pytest
import torch

from denserk.analysis.encoders import (
    LATENCY_HEADER,
    SIMILARITY_HEADER,
    query_latency,
    sentence_similarity,
)
from denserk.config.analysis import QueryLatencySettings, SentenceSimilaritySettings
from denserk.config.encoding import ComputeSettings
from denserk.errors import InputError, UsageError
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage
from tests.conftest import QUERIES

PAIRS = [
    ("a cat sleeps", "the dog sleeps", 4.0),
    ("the moon rises", "red boat on water", 0.5),
    ("a river", "a river", 5.0),
    ("money in the bank", "the sun falls", 0.5),
    ("old house", "a new house", 2.0),
]
TRIPLETS = [
    ("the river runs", "a river runs south", "money"),
    ("cat", "the big dog eats fish", "cat"),
    ("moon", "the moon and star", "red"),
]


def write_pairs(path, pairs=PAIRS):
    path.write_text("".join(f"{a}\t{b}\t{label}\n" for a, b, label in pairs))
    return str(path)


def write_triplets(path):
    names = ("anchor", "positive", "negative")
    rows = (dict(zip(names, texts, strict=True)) for texts in TRIPLETS)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def vectors_of(folder, texts, **representation):
    encoder = TextEncoder.load(str(folder), representation)
    return encoder.encode_passages([Passage("", text) for text in texts]).astype(np.float64)


def ranks(values):
    return [
        sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values
    ]


def correlation(first, second):
    one, other = (np.array(side) - np.mean(side) for side in (first, second))
    return float(one @ other / sqrt((one @ one) * (other @ other)))


def measured(model, data, **more):
    settings = SentenceSimilaritySettings(model=(str(model),), data=data)
    (found,) = sentence_similarity(settings, **more)
    return found


@pytest.mark.parametrize("representation", ["cls", "mean"])
def test_pairs(tiny, tmp_path, representation):
    data = write_pairs(tmp_path / "pairs.tsv")
    found = measured(tiny(), data, representation={"representation": representation})
    cosines = []
    for a, b, _ in PAIRS:
        one, other = vectors_of(tiny(), (a, b), representation=representation)
        cosines.append(round(one @ other / sqrt((one @ one) * (other @ other)), 5))
    expected = correlation(ranks(cosines), ranks([label for _, _, label in PAIRS]))
    assert found.value == pytest.approx(expected)
    assert found.row()[1:5] == [data, "pairs", "5", "spearman"]


def test_triplets(tiny, tmp_path):
    found = measured(tiny(), write_triplets(tmp_path / "triplets.jsonl"))
    right = 0
    for texts in TRIPLETS:
        anchor, positive, negative = vectors_of(tiny(), texts)
        right += np.linalg.norm(anchor - positive) < np.linalg.norm(anchor - negative)
    assert found.value == right / 3
    assert found.value < 1  # the second one is wrong for any model
    assert found.row()[2:5] == ["triplets", "3", "accuracy"]


def test_several_vectors_a_passage_are_measured_by_the_query_s(tiny, tmp_path):
    data = write_pairs(tmp_path / "pairs.tsv")
    several = {"representation": "mlr", "reduction": "multi-vector", "layers": [2, 1]}
    assert measured(tiny(), data, representation=several).value == measured(tiny(), data).value


def test_a_row_a_model_and_a_table(tiny, tmp_path):
    data, out = write_pairs(tmp_path / "pairs.tsv"), tmp_path / "table.csv"
    models = (str(tiny()), str(tiny(seed=8)))
    found = sentence_similarity(
        SentenceSimilaritySettings(model=models, data=data, output=str(out))
    )
    assert [each.model for each in found] == list(models)
    assert out.read_text().splitlines() == [
        ",".join(SIMILARITY_HEADER),
        *(",".join(r.row()) for r in found),
    ]


def test_labels_that_are_all_the_same(tiny, tmp_path):
    data = write_pairs(tmp_path / "pairs.tsv", [("a cat", "a dog", 3.0), ("sun", "moon", 3.0)])
    with pytest.raises(InputError, match="found only the label 3; expected labels that differ"):
        measured(tiny(), data)


IDS = list(QUERIES)


def timed(tmp_path, *models, topics, compute=None, **more):
    chosen = {"warm_up": 0, "output": str(tmp_path / "l.csv"), **more}
    settings = QueryLatencySettings(model=tuple(map(str, models)), topics=str(topics), **chosen)
    compute = compute or ComputeSettings(device="cpu")
    return query_latency(settings, compute=compute)


@pytest.fixture
def encoded(monkeypatch):
    """The ids of the queries of every call, by the folder of the model."""
    calls = []
    whole = TextEncoder.encode_queries

    def watched(self, queries):
        calls.append((self.name, [query.qid for query in queries]))
        return whole(self, queries)

    monkeypatch.setattr(TextEncoder, "encode_queries", watched)
    return calls


def test_every_query_is_encoded_alone_after_the_warm_up(tiny, toy, tmp_path, encoded):
    models = (tiny(), tiny(seed=8))
    found = timed(tmp_path, *models, topics=toy / "queries.tsv", warm_up=4)
    once = [[qid] for qid in [*IDS, IDS[0], *IDS]]
    assert encoded == [(str(model), qids) for model in models for qids in once]
    for each in found:
        assert each.times.shape == (3,)
        assert each.percentiles == tuple(np.sort(each.times)[[0, 1, 2]])
        assert each.times.min() > 0
        assert (each.device, each.threads) == ("cpu", torch.get_num_threads())


@pytest.mark.parametrize(("size", "batches"), [(2, [IDS[:2]]), (3, [IDS]), (4, [IDS])])
def test_batches_of_one_size(tiny, toy, tmp_path, encoded, size, batches):
    compute = ComputeSettings(device="cpu", batch_size=size)
    (found,) = timed(tmp_path, tiny(), topics=toy / "queries.tsv", compute=compute)
    assert [qids for _, qids in encoded] == batches
    assert len(found.times) == len(batches)


def test_times_are_milliseconds(tiny, toy, tmp_path, monkeypatch):
    clock, step = [0.0], iter([0.004, 0.001, 0.002])

    def encode(self, queries):
        clock[0] += next(step)

    monkeypatch.setattr(TextEncoder, "encode_queries", encode)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    (found,) = timed(tmp_path, f"m={tiny()}", topics=toy / "queries.tsv")
    assert found.percentiles == pytest.approx((1.0, 2.0, 4.0))
    with (tmp_path / "l.csv").open() as lines:
        header, row = csv.reader(lines)
    assert tuple(header) == LATENCY_HEADER
    assert row == [
        *("m", str(tiny()), str(toy / "queries.tsv"), "3", "42", "0", "1", "cpu"),
        *(str(torch.get_num_threads()), "float32", "16", "1.0000", "2.0000", "4.0000", "2.3333"),
    ]


def test_every_model_is_looked_for_first(tiny, toy, tmp_path, encoded):
    with pytest.raises(UsageError, match="none: no such folder"):
        timed(tmp_path, tiny(), tmp_path / "none", topics=toy / "queries.tsv")
    assert encoded == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_is_waited_for(tiny, toy, tmp_path, monkeypatch):
    waited: list[None] = []
    whole = torch.cuda.synchronize
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.append(whole(device)))
    compute = ComputeSettings(device="cuda")
    (found,) = timed(tmp_path, tiny(), topics=toy / "queries.tsv", compute=compute)
    assert len(waited) == len(QUERIES)
    assert found.device == f"cuda ({torch.cuda.get_device_name()})"
