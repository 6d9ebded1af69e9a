import csv
import time

import numpy as np
import pytest
import torch

from denserk.analysis.encoders import LATENCY_HEADER, query_latency
from denserk.config.analysis import QueryLatencySettings
from denserk.config.encoding import ComputeSettings
from denserk.errors import UsageError
from denserk.models.text_encoder import TextEncoder
from tests.conftest import QUERIES

IDS = list(QUERIES)


def measured(tmp_path, *models, topics, compute=None, **more):
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
    found = measured(tmp_path, *models, topics=toy / "queries.tsv", warm_up=4)
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
    (found,) = measured(tmp_path, tiny(), topics=toy / "queries.tsv", compute=compute)
    assert [qids for _, qids in encoded] == batches
    assert len(found.times) == len(batches)


def test_times_are_milliseconds(tiny, toy, tmp_path, monkeypatch):
    clock, step = [0.0], iter([0.004, 0.001, 0.002])

    def encode(self, queries):
        clock[0] += next(step)

    monkeypatch.setattr(TextEncoder, "encode_queries", encode)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    (found,) = measured(tmp_path, f"m={tiny()}", topics=toy / "queries.tsv")
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
        measured(tmp_path, tiny(), tmp_path / "none", topics=toy / "queries.tsv")
    assert encoded == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_is_waited_for(tiny, toy, tmp_path, monkeypatch):
    waited: list[None] = []
    whole = torch.cuda.synchronize
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.append(whole(device)))
    compute = ComputeSettings(device="cuda")
    (found,) = measured(tmp_path, tiny(), topics=toy / "queries.tsv", compute=compute)
    assert len(waited) == len(QUERIES)
    assert found.device == f"cuda ({torch.cuda.get_device_name()})"
