import csv
import time
from math import sqrt

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from denserk.config.analysis import QueryLatencySettings, SentenceSimilaritySettings
from denserk.config.encoding import ComputeSettings, ModelOptions
from denserk.errors import InputError
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage
from denserk.tasks.analyze.query_latency import query_latency
from denserk.tasks.analyze.sentence_similarity import sentence_similarity
from tests.support.toy import QUERIES
from tests.support.training_examples import jsonl

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


def vectors_of(folder, texts, **representation):
    encoder = TextEncoder(str(folder), representation)
    return encoder.encode_passages([Passage("", text) for text in texts]).astype(np.float64)


def measured(data, *models, output=None, **more):
    settings = SentenceSimilaritySettings(model=tuple(map(str, models)), data=data, output=output)
    return sentence_similarity(settings, ModelOptions(**more))


@pytest.mark.parametrize("representation", ["cls", "mean"])
def test_pairs(tiny, tmp_path, representation):
    data = write_pairs(tmp_path / "pairs.tsv")
    made = {"representation": representation}
    (found,) = measured(data, f"a={tiny()}", representation=made)
    cosines = []
    for a, b, _ in PAIRS:
        one, other = vectors_of(tiny(), (a, b), representation=representation)
        cosines.append(round(one @ other / sqrt((one @ one) * (other @ other)), 5))
    expected = spearmanr(cosines, [label for _, _, label in PAIRS]).statistic
    assert found.pop("value") == pytest.approx(expected)
    assert list(found.values()) == ["a", str(tiny()), data, "pairs", 5, "spearman"]


def test_triplets(tiny, tmp_path):
    names = ("anchor", "positive", "negative")
    rows = (dict(zip(names, texts, strict=True)) for texts in TRIPLETS)
    (found,) = measured(jsonl(tmp_path / "triplets.jsonl", rows), tiny())
    right = 0
    for texts in TRIPLETS:
        anchor, positive, negative = vectors_of(tiny(), texts)
        right += np.linalg.norm(anchor - positive) < np.linalg.norm(anchor - negative)
    assert found["value"] == right / 3 < 1  # the second one is wrong for any model
    assert list(found.values())[3:6] == ["triplets", 3, "accuracy"]


def test_a_table_of_several_models(tiny, tmp_path):
    data, out = write_pairs(tmp_path / "pairs.tsv"), tmp_path / "table.csv"
    models = (str(tiny()), str(tiny(seed=8)))
    found = measured(data, *models, output=str(out))
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["model"] for row in rows] == list(models)
    assert [float(row["value"]) for row in rows] == pytest.approx([r["value"] for r in found])
    several = {"representation": "mlr", "reduction": "multi-vector", "layers": [2, 1]}
    (by_query,) = measured(data, models[0], representation=several)
    assert by_query["value"] == found[0]["value"]  # the vector that encodes queries


def test_labels_that_are_all_the_same(tiny, tmp_path):
    data = write_pairs(tmp_path / "pairs.tsv", [("a cat", "a dog", 3.0), ("sun", "moon", 3.0)])
    with pytest.raises(InputError, match="found only the label 3; expected labels that differ"):
        measured(data, tiny())


IDS = list(QUERIES)


@pytest.fixture
def timed(toy, tmp_path):
    def latency(*models, compute=None, **more):
        chosen = {"warm_up": 0, "output": str(tmp_path / "l.csv"), **more}
        models = tuple(map(str, models))
        settings = QueryLatencySettings(model=models, topics=str(toy / "queries.tsv"), **chosen)
        return query_latency(
            settings, ModelOptions(compute=compute or ComputeSettings(device="cpu"))
        )

    return latency


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


def test_every_query_is_encoded_alone_after_the_warm_up(tiny, timed, encoded):
    models = (tiny(), tiny(seed=8))
    found = timed(*models, warm_up=4)
    once = [[qid] for qid in [*IDS, IDS[0], *IDS]]
    assert encoded == [(str(model), qids) for model in models for qids in once]
    for each in found:
        assert 0 < each["p1_ms"] <= each["p50_ms"] <= each["p99_ms"]
        assert (each["device"], each["threads"]) == ("cpu", torch.get_num_threads())


@pytest.mark.parametrize(("size", "batches"), [(2, [IDS[:2]]), (4, [IDS])])
def test_batches_of_one_size(tiny, timed, encoded, size, batches):
    (found,) = timed(tiny(), compute=ComputeSettings(device="cpu", batch_size=size))
    assert [qids for _, qids in encoded] == batches
    assert found["queries"] == len(batches[0])


def test_times_are_milliseconds(tiny, toy, timed, tmp_path, monkeypatch):
    clock, step = [0.0], iter([0.004, 0.001, 0.002])

    def encode(self, queries):
        clock[0] += next(step)

    monkeypatch.setattr(TextEncoder, "encode_queries", encode)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    timed(f"m={tiny()}")
    header, row = csv.reader((tmp_path / "l.csv").read_text().splitlines())
    names = "label model topics queries seed warm_up batch_size device threads dtype dimension"
    assert header == [*names.split(), "p1_ms", "p50_ms", "p99_ms", "mean_ms"]
    given = ["m", str(tiny()), str(toy / "queries.tsv"), "3", "42", "0", "1", "cpu"]
    assert row[:11] == [*given, str(torch.get_num_threads()), "float32", "16"]
    assert list(map(float, row[11:])) == pytest.approx([1, 2, 4, 7 / 3], abs=1e-6)
