import csv
import time

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
    path.write_text("".join(f"{left}\t{right}\t{label}\n" for left, right, label in pairs))
    return str(path)


def vectors_of(folder, texts, representation="cls"):
    encoder = TextEncoder(str(folder), {"representation": representation})
    return encoder.encode_passages([Passage("", text) for text in texts]).astype(np.float64)


def measure(data, *models, representation=None, output=None):
    settings = SentenceSimilaritySettings(model=tuple(map(str, models)), data=data, output=output)
    return sentence_similarity(settings, ModelOptions(representation or {}))


@pytest.mark.parametrize("representation", ["cls", "mean"])
def test_pairs_are_correlated_with_their_labels(tiny, tmp_path, representation):
    data = write_pairs(tmp_path / "pairs.tsv")
    (row,) = measure(data, f"tiny={tiny()}", representation={"representation": representation})
    cosines = []
    labels = []
    for left_text, right_text, label in PAIRS:
        left, right = vectors_of(tiny(), (left_text, right_text), representation)
        cosine = left @ right / (np.linalg.norm(left) * np.linalg.norm(right))
        cosines.append(round(cosine, 5))
        labels.append(label)
    assert row == {
        "label": "tiny",
        "model": str(tiny()),
        "data": data,
        "kind": "pairs",
        "count": 5,
        "measure": "spearman",
        "value": pytest.approx(spearmanr(cosines, labels).statistic),
    }


def test_a_triplet_is_right_if_the_positive_is_nearer(tiny, tmp_path):
    triplets = []
    right_count = 0
    for texts in TRIPLETS:
        triplets.append(dict(zip(("anchor", "positive", "negative"), texts, strict=True)))
        anchor, positive, negative = vectors_of(tiny(), texts)
        right_count += np.linalg.norm(anchor - positive) < np.linalg.norm(anchor - negative)
    (row,) = measure(jsonl(tmp_path / "triplets.jsonl", triplets), tiny())
    assert right_count < 3  # the second one is wrong for any model
    assert row["value"] == right_count / 3
    assert (row["kind"], row["count"], row["measure"]) == ("triplets", 3, "accuracy")


def test_several_models_are_rows_of_a_table(tiny, tmp_path):
    data = write_pairs(tmp_path / "pairs.tsv")
    table = tmp_path / "table.csv"
    rows = measure(data, tiny(seed=7), tiny(seed=8), output=str(table))
    lines = list(csv.DictReader(table.read_text().splitlines()))
    assert [line["model"] for line in lines] == [str(tiny(seed=7)), str(tiny(seed=8))]
    values = [row["value"] for row in rows]
    assert [float(line["value"]) for line in lines] == pytest.approx(values)


def test_of_several_vectors_the_one_that_encodes_queries_counts(tiny, tmp_path):
    data = write_pairs(tmp_path / "pairs.tsv")
    (last_layer,) = measure(data, tiny())
    several = {"representation": "mlr", "reduction": "multi-vector", "layers": [2, 1]}
    (several_layers,) = measure(data, tiny(), representation=several)
    assert several_layers["value"] == last_layer["value"]


def test_labels_that_are_all_the_same_are_rejected(tiny, tmp_path):
    data = write_pairs(tmp_path / "pairs.tsv", [("a cat", "a dog", 3.0), ("sun", "moon", 3.0)])
    with pytest.raises(InputError, match="only the label 3"):
        measure(data, tiny())


@pytest.fixture
def measure_latency(toy, tmp_path):
    """`measure_latency(folder, ...)`: the times of models on the toy queries, on a CPU."""

    def measured(*models, warm_up=0, batch_size=None):
        settings = QueryLatencySettings(
            model=tuple(map(str, models)),
            topics=str(toy / "queries.tsv"),
            warm_up=warm_up,
            output=str(tmp_path / "latency.csv"),
        )
        compute = ComputeSettings(device="cpu", batch_size=batch_size)
        return query_latency(settings, ModelOptions(compute=compute))

    return measured


@pytest.fixture
def encoder_calls(monkeypatch):
    """The folder of the model and the ids of the queries of every call."""
    calls = []
    encode_queries = TextEncoder.encode_queries

    def encode_and_note(self, queries):
        calls.append((self.name, [query.qid for query in queries]))
        return encode_queries(self, queries)

    monkeypatch.setattr(TextEncoder, "encode_queries", encode_and_note)
    return calls


def test_every_query_is_encoded_alone_after_the_warm_up(tiny, measure_latency, encoder_calls):
    rows = measure_latency(tiny(seed=7), tiny(seed=8), warm_up=4)
    warm_up = [["q1"], ["q2"], ["q3"], ["q1"]]
    timed = [["q1"], ["q2"], ["q3"]]
    expected_calls = []
    for folder in (tiny(seed=7), tiny(seed=8)):
        expected_calls += [(str(folder), qids) for qids in warm_up + timed]
    assert encoder_calls == expected_calls
    for row in rows:
        assert 0 < row["p1_ms"] <= row["p50_ms"] <= row["p99_ms"]
        assert row["device"] == "cpu"
        assert row["threads"] == torch.get_num_threads()


@pytest.mark.parametrize(("batch_size", "qids"), [(2, ["q1", "q2"]), (4, ["q1", "q2", "q3"])])
def test_only_whole_batches_are_timed(tiny, measure_latency, encoder_calls, batch_size, qids):
    (row,) = measure_latency(tiny(), batch_size=batch_size)
    assert encoder_calls == [(str(tiny()), qids)]
    assert row["queries"] == len(qids)


class Clock:
    """A clock on which encoding takes 4, 1 and 2 milliseconds."""

    def __init__(self):
        self.seconds = 0.0
        self.durations = iter([0.004, 0.001, 0.002])

    def encode(self, queries):
        self.seconds += next(self.durations)


def test_times_are_written_in_milliseconds(tiny, toy, measure_latency, tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(TextEncoder, "encode_queries", clock.encode)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.seconds)
    measure_latency(f"tiny={tiny()}")
    (row,) = csv.DictReader((tmp_path / "latency.csv").read_text().splitlines())
    times = [float(row.pop(name)) for name in ("p1_ms", "p50_ms", "p99_ms", "mean_ms")]
    assert times == pytest.approx([1, 2, 4, 7 / 3], abs=1e-6)
    assert list(row.items()) == [
        ("label", "tiny"),
        ("model", str(tiny())),
        ("topics", str(toy / "queries.tsv")),
        ("queries", "3"),
        ("seed", "42"),
        ("warm_up", "0"),
        ("batch_size", "1"),
        ("device", "cpu"),
        ("threads", str(torch.get_num_threads())),
        ("dtype", "float32"),
        ("dimension", "16"),
    ]
