"""Whatever is wrong with the arguments is a `DenserkError` that names no temporary file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import denserk
from denserk.errors import DenserkError
from tests.support.toy import PASSAGES, QRELS, QUERIES

RUN = {"q1": {"d1": 2.0, "d3": 1.0}}
CORPUS = [{"id": docid, "title": title, "text": text} for docid, (title, text) in PASSAGES.items()]
VECTORS = np.ones((3, 4), np.float32)


class Given(NamedTuple):
    """What the calls are made with."""

    model: denserk.Encoder
    flat: denserk.Index
    name: Path  # of the model
    folder: Path  # an empty one


@pytest.fixture(scope="module")
def model(tiny):
    return denserk.Encoder.load(tiny(), representation="mean", device="cpu")


@pytest.fixture
def given(model, tiny, tmp_path):
    return Given(model, denserk.Index.build(VECTORS), tiny(), tmp_path)


def _built(folder: Path) -> Path:
    denserk.Index.build(VECTORS, output=folder)
    return folder


Call = Callable[[Any], object]
MISSING = "/nowhere/at/all"
# Untyped on purpose: mypy would find most of these mistakes.
api: Any = denserk
CALLS: dict[str, Call] = {
    # models
    "load a number": lambda g: api.Encoder.load(7),
    "load None": lambda g: api.Encoder.load(None),
    "load a missing folder": lambda g: api.Encoder.load(MISSING),
    "load a folder without a model": lambda g: api.Encoder.load(g.folder),
    "load with an unknown option": lambda g: api.Encoder.load(g.name, poolin="mean"),
    "load with an unknown value": lambda g: api.Encoder.load(g.name, representation="middle"),
    "load with a float for a text": lambda g: api.Encoder.load(g.name, query_prefix=1.5),
    "load with a text for a number": lambda g: api.Encoder.load(g.name, query_max_length="x"),
    "load with a number out of bounds": lambda g: api.Encoder.load(g.name, query_max_length=0),
    "load with a number for yes or no": lambda g: api.Encoder.load(g.name, l2_norm=1),
    "load with a number for a list": lambda g: api.Encoder.load(g.name, fields=3),
    "load on no device": lambda g: api.Encoder.load(g.name, device="gpu"),
    "load on a number": lambda g: api.Encoder.load(g.name, device=0),
    "load with config": lambda g: api.Encoder.load(g.name, config="config.yaml"),
    "an encoder of a name": lambda g: api.Encoder(str(g.name)),
    # encoding
    "encode numbers": lambda g: g.model.encode_queries([1.5, 2.5]),
    "encode nothing": lambda g: g.model.encode_passages(None),
    "encode a path": lambda g: g.model.encode_passages(Path("corpus.jsonl")),
    "encode a list of lists": lambda g: g.model.encode_passages([["moon"]]),
    "encode to without texts": lambda g: g.model.encode_to(g.folder / "v"),
    "encode to with both": lambda g: g.model.encode_to(g.folder / "v", corpus=CORPUS, topics=[]),
    "encode to with a model": lambda g: g.model.encode_to(g.folder, corpus=[], model="minilm"),
    "encode to with another representation": lambda g: g.model.encode_to(
        g.folder / "v", corpus=CORPUS, representation="cls"
    ),
    "encode to a number": lambda g: g.model.encode_to(7, corpus=CORPUS),
    "encode a missing corpus": lambda g: g.model.encode_to(g.folder / "v", corpus=MISSING),
    "encode wrong texts": lambda g: api.encode(g.name, g.folder / "v", corpus=7),
    "encode no text at all": lambda g: api.encode(g.name, g.folder / "v", corpus=[]),
    # indexes
    "build of None": lambda g: api.Index.build(None),
    "build of a list": lambda g: api.Index.build([[1.0, 2.0]]),
    "build of three axes": lambda g: api.Index.build(np.ones((2, 3, 4))),
    "build of a missing folder": lambda g: api.Index.build(MISSING),
    "build of numbers that are not finite": lambda g: api.Index.build(VECTORS * np.nan),
    "build with other ids": lambda g: api.Index.build(VECTORS, ids=["a"]),
    "build with ids that are numbers": lambda g: api.Index.build(VECTORS, ids=[0.5, 1.5, 2.5]),
    "build of an unknown type": lambda g: api.Index.build(VECTORS, type="tree"),
    "build of type None": lambda g: api.Index.build(VECTORS, type=3),
    "build with an option of BM25": lambda g: api.Index.build(VECTORS, k1=0.9),
    "build with a wrong option": lambda g: api.Index.build(VECTORS, type="hnsw", M="many"),
    "build where the dimension does not divide": lambda g: api.Index.build(
        VECTORS, type="pq", pq_m=3
    ),
    "build for milvus": lambda g: api.Index.build(VECTORS, engine="milvus"),
    "build to a number": lambda g: api.Index.build(VECTORS, output=7),
    "build of no corpus": lambda g: api.BM25.build(None),
    "build of a corpus that is missing": lambda g: api.BM25.build(MISSING),
    "build of BM25 with ids": lambda g: api.BM25.build(CORPUS, ids=["a"]),
    "build of BM25 with a metric": lambda g: api.BM25.build(CORPUS, metric="l2"),
    "build of BM25 with a wrong stemmer": lambda g: api.BM25.build(CORPUS, stemmer="latin-1"),
    "open a number": lambda g: api.Index.open(7),
    "open nothing": lambda g: api.Index.open([]),
    "open None": lambda g: api.Index.open([None]),
    "open a missing folder": lambda g: api.Index.open(MISSING),
    "open an empty folder": lambda g: api.Index.open(g.folder),
    "open with dtype": lambda g: api.Index.open(g.folder, dtype="float16"),
    "an index of a path": lambda g: api.Index(g.folder),
    "a BM25 index of a corpus": lambda g: api.BM25(CORPUS),
    "open vectors as BM25": lambda g: api.BM25.open(_built(g.folder / "flat")),
    # search
    "search with a number": lambda g: g.flat.search(7),
    "search with None": lambda g: g.flat.search(None),
    "search without a model": lambda g: g.flat.search("moon"),
    "search with a model of another dimension": lambda g: g.flat.search("moon", model=g.model),
    "search with a number as model": lambda g: g.flat.search("moon", model=7),
    "search with a missing model": lambda g: g.flat.search("moon", model=MISSING),
    "search with a missing file": lambda g: g.flat.search(Path(MISSING), model=g.model),
    "search with vectors of another dimension": lambda g: g.flat.search(np.ones((2, 5))),
    "search with complex vectors": lambda g: g.flat.search(np.ones((2, 4), complex)),
    "search with vectors that are not finite": lambda g: g.flat.search(VECTORS * np.inf),
    "search for no hits": lambda g: g.flat.search(VECTORS, hits=0),
    "search for half a hit": lambda g: g.flat.search(VECTORS, hits=0.5),
    "search for hits by a text": lambda g: g.flat.search(VECTORS, hits="many"),
    "search with a tag": lambda g: g.flat.search(VECTORS, tag="x"),
    "search with an unknown option": lambda g: g.flat.search(VECTORS, hit=3),
    "search exactly with nprobe": lambda g: g.flat.search(VECTORS, nprobe=3),
    # runs
    "a run of a missing file": lambda g: api.Run.load(MISSING),
    "a run of a number": lambda g: api.Run.load(7),
    "a run of a list": lambda g: api.Run.from_pandas([1]),
    "save to a number": lambda g: api.Run(RUN).save(7),
    "save to a folder": lambda g: api.Run(RUN).save(g.folder),
    "save with an empty tag": lambda g: api.Run(RUN).save(g.folder / "run", tag=""),
    "save with a tag of two words": lambda g: api.Run(RUN).save(g.folder / "run", tag="a b"),
    "save what is no run": lambda g: api.Run({"q1": ["d1"]}).save(g.folder / "run"),
    "fuse one run": lambda g: api.fuse([RUN]),
    "fuse a run": lambda g: api.fuse(RUN),
    "fuse None": lambda g: api.fuse(None),
    "fuse with None": lambda g: api.fuse([RUN, None]),
    "fuse with a text": lambda g: api.fuse([RUN, {"q1": "d1"}]),
    "fuse with an empty run": lambda g: api.fuse([RUN, {}]),
    "fuse with a missing file": lambda g: api.fuse([RUN, MISSING]),
    "fuse other queries": lambda g: api.fuse([RUN, {"q2": {"d1": 1.0}}]),
    "fuse with three weights": lambda g: api.fuse([RUN, RUN], weights=[1, 2, 3]),
    "fuse with wrong weights": lambda g: api.fuse([RUN, RUN], weights=["a", "b"]),
    "fuse by an unknown method": lambda g: api.fuse([RUN, RUN], method="sum"),
    "fuse to infinity": lambda g: api.fuse(
        [{"q1": {"d1": 1e308}}] * 2, method="linear", normalization="none", ties="keep"
    ),
    "fuse and tune by nothing": lambda g: api.fuse([RUN, RUN], tune={}),
    "fuse and tune by other queries": lambda g: api.fuse([RUN, RUN], tune={"q2": {"d1": 1}}),
    "fuse and tune by a missing file": lambda g: api.fuse([RUN, RUN], tune=MISSING),
    "fuse and tune by no measure": lambda g: api.fuse([RUN, RUN], tune=QRELS, measure="best"),
    # evaluation
    "evaluate None": lambda g: api.evaluate(None, QRELS),
    "evaluate by None": lambda g: api.evaluate(RUN, None),
    "evaluate by nothing": lambda g: api.evaluate(RUN, {}),
    "evaluate by empty judgments": lambda g: api.evaluate(RUN, {"q1": {}}),
    "evaluate nothing": lambda g: api.evaluate({}, QRELS),
    "evaluate runs without names": lambda g: api.evaluate([RUN, RUN], QRELS),
    "evaluate files without names": lambda g: api.evaluate([MISSING, MISSING], QRELS),
    "evaluate a missing file": lambda g: api.evaluate(MISSING, QRELS),
    "evaluate by a missing file": lambda g: api.evaluate(RUN, MISSING),
    "evaluate by a folder": lambda g: api.evaluate(RUN, g.folder),
    "evaluate by half a grade": lambda g: api.evaluate(RUN, {"q1": {"d1": 0.5}}),
    "evaluate by a text": lambda g: api.evaluate(RUN, {"q1": {"d1": "1"}}),
    "evaluate a number": lambda g: api.evaluate({"a": 7}, QRELS),
    "evaluate no measure": lambda g: api.evaluate(RUN, QRELS, "nDCG10"),
    "evaluate a number of measures": lambda g: api.evaluate(RUN, QRELS, 10),
    "evaluate a list of numbers": lambda g: api.evaluate(RUN, QRELS, [10]),
    "evaluate with an unknown baseline": lambda g: api.evaluate({"a": RUN}, QRELS, baseline="b"),
    "evaluate with a number as baseline": lambda g: api.evaluate({"a": RUN}, QRELS, baseline=1),
    "evaluate with an option of files": lambda g: api.evaluate(RUN, QRELS, seeds=True),
    "evaluate with a wrong test": lambda g: api.evaluate(RUN, QRELS, test="z"),
    "evaluate under a minimum": lambda g: api.evaluate(RUN, QRELS, "RR@10", min="RR@10=1"),
    "evaluate with no minimum": lambda g: api.evaluate(RUN, QRELS, min="high"),
    "explain an unknown query": lambda g: api.explain(RUN, QRELS, "q9"),
    "explain a number": lambda g: api.explain(RUN, QRELS, 1),
    "explain no run": lambda g: api.explain(None, QRELS, "q1"),
    "benchmark an unknown name": lambda g: api.benchmark("dl18", runs=RUN),
    "benchmark None": lambda g: api.benchmark(None, runs=RUN),
    "benchmark a number": lambda g: api.benchmark([7], runs=RUN),
    "benchmark no runs": lambda g: api.benchmark("dl19"),
    "benchmark a missing run": lambda g: api.benchmark("dl19", runs=MISSING),
    "benchmark a number as run": lambda g: api.benchmark("dl19", runs=7),
    "benchmark a model without output": lambda g: api.benchmark("dl19", model=g.name),
    "benchmark with an unknown paper": lambda g: api.benchmark("dl19", runs=RUN, against="bert"),
    # reranking
    "rerank None": lambda g: api.rerank(None, g.name, topics=QUERIES, corpus=CORPUS),
    "rerank by a number": lambda g: api.rerank(RUN, 7, topics=QUERIES, corpus=CORPUS),
    "rerank by a retriever": lambda g: api.rerank(RUN, g.name, topics=QUERIES, corpus=CORPUS),
    "rerank without topics": lambda g: api.rerank(RUN, g.name, topics=None, corpus=CORPUS),
    "rerank with a missing corpus": lambda g: api.rerank(
        RUN, MISSING, topics=QUERIES, corpus=MISSING
    ),
    # training
    "mine from None": lambda g: api.mine_negatives(None, topics=QUERIES, qrels=QRELS),
    "mine from nothing": lambda g: api.mine_negatives([], topics=QUERIES, qrels=QRELS),
    "mine without queries": lambda g: api.mine_negatives(RUN, qrels=QRELS, corpus=CORPUS),
    "mine without a corpus": lambda g: api.mine_negatives(RUN, topics=QUERIES, qrels=QRELS),
    "mine by a number": lambda g: api.mine_negatives(RUN, topics=QUERIES, qrels=7, corpus=CORPUS),
    "mine other queries": lambda g: api.mine_negatives(
        {"q9": {"d1": 1.0}}, topics=QUERIES, qrels=QRELS, corpus=CORPUS
    ),
    "mine hits that the corpus lacks": lambda g: api.mine_negatives(
        {qid: {"d99": 1.0} for qid in QUERIES}, topics=QUERIES, qrels=QRELS, corpus=CORPUS
    ),
    "mine with an unknown preset": lambda g: api.mine_negatives(
        RUN, topics=QUERIES, qrels=QRELS, corpus=CORPUS, preset="x"
    ),
    "mine for wrong training data": lambda g: api.mine_negatives(RUN, train=[7], corpus=CORPUS),
    "mine for two files": lambda g: api.mine_negatives(RUN, train=["a", "b"], corpus=CORPUS),
    "mine to a folder": lambda g: api.mine_negatives(
        RUN, topics=QUERIES, qrels=QRELS, corpus=CORPUS, output=g.folder, skip_missing=True
    ),
    "finetune nothing": lambda g: api.finetune(None, [], g.folder / "m"),
    "finetune on nothing": lambda g: api.finetune(g.name, [], g.folder / "m"),
    "finetune on None": lambda g: api.finetune(g.name, None, g.folder / "m"),
    "finetune on a missing file": lambda g: api.finetune(g.name, MISSING, g.folder / "m"),
    "finetune on mixed data": lambda g: api.finetune(g.name, [MISSING, 7], g.folder / "m"),
    "finetune to None": lambda g: api.finetune(g.name, CORPUS, None),
    "finetune with an unknown option": lambda g: api.finetune(
        g.name, CORPUS, g.folder / "m", lerning_rate=1
    ),
    "finetune with a missing config": lambda g: api.finetune(
        g.name, CORPUS, g.folder / "m", config=MISSING
    ),
    "finetune with a number as config": lambda g: api.finetune(
        g.name, CORPUS, g.folder / "m", config=7
    ),
    "finetune with an unknown preset": lambda g: api.finetune(
        g.name, CORPUS, g.folder / "m", preset="x"
    ),
    "pretrain by nothing": lambda g: api.pretrain(None, ["a"], g.folder / "m", model=g.name),
    "pretrain by an unknown objective": lambda g: api.pretrain(
        "bert", ["a"], g.folder / "m", model=g.name
    ),
    "pretrain on nothing": lambda g: api.pretrain("mlm", [], g.folder / "m", model=g.name),
    "pretrain no model": lambda g: api.pretrain("mlm", ["a"], g.folder / "m"),
    # files
    "generate without a model": lambda g: api.generate(CORPUS),
    "generate of a number": lambda g: api.generate(7, queries_model=g.name),
    "generate by a missing model": lambda g: api.generate(CORPUS, queries_model=MISSING),
    "convert a number": lambda g: api.convert(7, g.folder / "c"),
    "convert a missing file": lambda g: api.convert(MISSING, g.folder / "c", kind="run"),
    "convert to a number": lambda g: api.convert(MISSING, 7),
    "convert an unknown kind": lambda g: api.convert(MISSING, g.folder / "c", kind="book"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_an_error_of_denserk(name, given):
    with pytest.raises(DenserkError) as caught:
        CALLS[name](given)
    assert "/denserk-" not in f"{caught.value} {caught.value.hint}"
    assert len(str(caught.value)) < 600
