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
HALF_CHARACTER = b"caf\xe9".decode("utf-8", "surrogateescape")  # as names of files may have


class Setup(NamedTuple):
    """What the calls are made with."""

    model: denserk.Encoder
    flat: denserk.Index
    name: Path  # of the model
    folder: Path  # an empty one


@pytest.fixture(scope="module")
def model(tiny):
    return denserk.Encoder.load(tiny(), representation="mean", device="cpu")


@pytest.fixture
def setup(model, tiny, tmp_path):
    return Setup(model, denserk.Index.build(VECTORS), tiny(), tmp_path)


def _built(folder: Path) -> Path:
    denserk.Index.build(VECTORS, output=folder)
    return folder


Call = Callable[[Any], object]  # of a Setup, `s`
MISSING = "/nowhere/at/all"
# Untyped on purpose: mypy would find most of these mistakes.
api: Any = denserk
CALLS: dict[str, Call] = {
    # models
    "load a number": lambda s: api.Encoder.load(7),
    "load None": lambda s: api.Encoder.load(None),
    "load a missing folder": lambda s: api.Encoder.load(MISSING),
    "load a folder without a model": lambda s: api.Encoder.load(s.folder),
    "load with an unknown option": lambda s: api.Encoder.load(s.name, poolin="mean"),
    "load with an unknown value": lambda s: api.Encoder.load(s.name, representation="middle"),
    "load with a float for a text": lambda s: api.Encoder.load(s.name, query_prefix=1.5),
    "load with a text for a number": lambda s: api.Encoder.load(s.name, query_max_length="x"),
    "load with a number out of bounds": lambda s: api.Encoder.load(s.name, query_max_length=0),
    "load with a number for yes or no": lambda s: api.Encoder.load(s.name, l2_norm=1),
    "load with a number for a list": lambda s: api.Encoder.load(s.name, fields=3),
    "load on no device": lambda s: api.Encoder.load(s.name, device="gpu"),
    "load on a number": lambda s: api.Encoder.load(s.name, device=0),
    "load with config": lambda s: api.Encoder.load(s.name, config="config.yaml"),
    "an encoder of a name": lambda s: api.Encoder(str(s.name)),
    # encoding
    "encode numbers": lambda s: s.model.encode_queries([1.5, 2.5]),
    "encode nothing": lambda s: s.model.encode_passages(None),
    "encode a path": lambda s: s.model.encode_passages(Path("corpus.jsonl")),
    "encode passages of a named field": lambda s: s.model.encode_passages(CORPUS, text_field="x"),
    "encode queries with an option": lambda s: s.model.encode_queries("moon", max_length=7),
    "encode a list of lists": lambda s: s.model.encode_passages([["moon"]]),
    "encode to without texts": lambda s: s.model.encode_to(s.folder / "v"),
    "encode to with both": lambda s: s.model.encode_to(s.folder / "v", corpus=CORPUS, topics=[]),
    "encode to with a model": lambda s: s.model.encode_to(s.folder, corpus=[], model="minilm"),
    "encode to with another representation": lambda s: s.model.encode_to(
        s.folder / "v", corpus=CORPUS, representation="cls"
    ),
    "encode to a number": lambda s: s.model.encode_to(7, corpus=CORPUS),
    "encode a missing corpus": lambda s: s.model.encode_to(s.folder / "v", corpus=MISSING),
    "encode wrong texts": lambda s: api.encode(s.name, s.folder / "v", corpus=7),
    "encode no text at all": lambda s: api.encode(s.name, s.folder / "v", corpus=[]),
    "encode half a character": lambda s: s.model.encode_queries([HALF_CHARACTER]),
    "encode a title with half a character": lambda s: s.model.encode_passages(
        [{"title": HALF_CHARACTER, "text": "moon"}]
    ),
    # indexes
    "build of None": lambda s: api.Index.build(None),
    "build of a list": lambda s: api.Index.build([[1.0, 2.0]]),
    "build of three axes": lambda s: api.Index.build(np.ones((2, 3, 4))),
    "build of a missing folder": lambda s: api.Index.build(MISSING),
    "build of numbers that are not finite": lambda s: api.Index.build(VECTORS * np.nan),
    "build with other ids": lambda s: api.Index.build(VECTORS, ids=["a"]),
    "build with ids that are numbers": lambda s: api.Index.build(VECTORS, ids=[0.5, 1.5, 2.5]),
    "build with half a character in an id": lambda s: api.Index.build(
        VECTORS, ids=["a", "b", HALF_CHARACTER]
    ),
    "build with a zero byte in an id": lambda s: api.Index.build(VECTORS, ids=["a", "b", "c\0"]),
    "build of BM25 with half a character": lambda s: api.BM25.build({"d1": HALF_CHARACTER}),
    "build of BM25 with half a character in a field": lambda s: api.BM25.build(
        [{"key": "d1", "body": HALF_CHARACTER}], id_field="key", text_field="body"
    ),
    "build of an unknown type": lambda s: api.Index.build(VECTORS, type="tree"),
    "build of a number as type": lambda s: api.Index.build(VECTORS, type=3),
    "build with an option of BM25": lambda s: api.Index.build(VECTORS, k1=0.9),
    "build with a wrong option": lambda s: api.Index.build(VECTORS, type="hnsw", M="many"),
    "build where the dimension does not divide": lambda s: api.Index.build(
        VECTORS, type="pq", pq_m=3
    ),
    "build for milvus": lambda s: api.Index.build(VECTORS, engine="milvus"),
    "build to a number": lambda s: api.Index.build(VECTORS, output=7),
    "build of no corpus": lambda s: api.BM25.build(None),
    "build of a corpus that is missing": lambda s: api.BM25.build(MISSING),
    "build of BM25 with ids": lambda s: api.BM25.build(CORPUS, ids=["a"]),
    "build of BM25 with a metric": lambda s: api.BM25.build(CORPUS, metric="l2"),
    "build of BM25 with a wrong stemmer": lambda s: api.BM25.build(CORPUS, stemmer="latin-1"),
    "open a number": lambda s: api.Index.open(7),
    "open nothing": lambda s: api.Index.open([]),
    "open None": lambda s: api.Index.open([None]),
    "open a missing folder": lambda s: api.Index.open(MISSING),
    "open an empty folder": lambda s: api.Index.open(s.folder),
    "open with dtype": lambda s: api.Index.open(s.folder, dtype="float16"),
    "an index of a path": lambda s: api.Index(s.folder),
    "a BM25 index of a corpus": lambda s: api.BM25(CORPUS),
    "open vectors as BM25": lambda s: api.BM25.open(_built(s.folder / "flat")),
    # search
    "search with a number": lambda s: s.flat.search(7),
    "search with None": lambda s: s.flat.search(None),
    "search without a model": lambda s: s.flat.search("moon"),
    "search with a model of another dimension": lambda s: s.flat.search("moon", model=s.model),
    "search with a number as model": lambda s: s.flat.search("moon", model=7),
    "search with a missing model": lambda s: s.flat.search("moon", model=MISSING),
    "search with a missing file": lambda s: s.flat.search(Path(MISSING), model=s.model),
    "search with vectors of another dimension": lambda s: s.flat.search(np.ones((2, 5))),
    "search with complex vectors": lambda s: s.flat.search(np.ones((2, 4), complex)),
    "search with vectors that are not finite": lambda s: s.flat.search(VECTORS * np.inf),
    "search for no hits": lambda s: s.flat.search(VECTORS, hits=0),
    "search for half a hit": lambda s: s.flat.search(VECTORS, hits=0.5),
    "search for hits by a text": lambda s: s.flat.search(VECTORS, hits="many"),
    "search with a tag": lambda s: s.flat.search(VECTORS, tag="x"),
    "search with an unknown option": lambda s: s.flat.search(VECTORS, hit=3),
    "search exactly with nprobe": lambda s: s.flat.search(VECTORS, nprobe=3),
    "passages of None": lambda s: api.BM25.build(CORPUS).passages(None),
    # runs
    "a run of a missing file": lambda s: api.Run.load(MISSING),
    "a run of a number": lambda s: api.Run.load(7),
    "a run of a list": lambda s: api.Run.from_pandas([1]),
    "save to a number": lambda s: api.Run(RUN).save(7),
    "save to a folder": lambda s: api.Run(RUN).save(s.folder),
    "save with an empty tag": lambda s: api.Run(RUN).save(s.folder / "run", tag=""),
    "save with a tag of two words": lambda s: api.Run(RUN).save(s.folder / "run", tag="a b"),
    "save what is no run": lambda s: api.Run({"q1": ["d1"]}).save(s.folder / "run"),
    "fuse one run": lambda s: api.fuse([RUN]),
    "fuse a run": lambda s: api.fuse(RUN),
    "fuse None": lambda s: api.fuse(None),
    "fuse with None": lambda s: api.fuse([RUN, None]),
    "fuse with a text": lambda s: api.fuse([RUN, {"q1": "d1"}]),
    "fuse with an empty run": lambda s: api.fuse([RUN, {}]),
    "fuse with a missing file": lambda s: api.fuse([RUN, MISSING]),
    "fuse other queries": lambda s: api.fuse([RUN, {"q2": {"d1": 1.0}}]),
    "fuse with three weights": lambda s: api.fuse([RUN, RUN], weights=[1, 2, 3]),
    "fuse with wrong weights": lambda s: api.fuse([RUN, RUN], weights=["a", "b"]),
    "fuse by an unknown method": lambda s: api.fuse([RUN, RUN], method="sum"),
    "fuse to infinity": lambda s: api.fuse(
        [{"q1": {"d1": 1e308}}] * 2, method="linear", normalization="none", ties="keep"
    ),
    "fuse and tune by nothing": lambda s: api.fuse([RUN, RUN], tune={}),
    "fuse and tune by other queries": lambda s: api.fuse([RUN, RUN], tune={"q2": {"d1": 1}}),
    "fuse and tune by a missing file": lambda s: api.fuse([RUN, RUN], tune=MISSING),
    "fuse and tune by no measure": lambda s: api.fuse([RUN, RUN], tune=QRELS, measure="best"),
    # evaluation
    "evaluate None": lambda s: api.evaluate(None, QRELS),
    "evaluate by None": lambda s: api.evaluate(RUN, None),
    "evaluate half a character": lambda s: api.evaluate({"q1": {HALF_CHARACTER: 1.0}}, QRELS),
    "evaluate by a zero byte": lambda s: api.evaluate(RUN, {"q1": {"d1\0a": 1}}),
    "evaluate by nothing": lambda s: api.evaluate(RUN, {}),
    "evaluate by empty judgments": lambda s: api.evaluate(RUN, {"q1": {}}),
    "evaluate nothing": lambda s: api.evaluate({}, QRELS),
    "evaluate runs without names": lambda s: api.evaluate([RUN, RUN], QRELS),
    "evaluate files without names": lambda s: api.evaluate([MISSING, MISSING], QRELS),
    "evaluate a missing file": lambda s: api.evaluate(MISSING, QRELS),
    "evaluate by a missing file": lambda s: api.evaluate(RUN, MISSING),
    "evaluate by a folder": lambda s: api.evaluate(RUN, s.folder),
    "evaluate by half a grade": lambda s: api.evaluate(RUN, {"q1": {"d1": 0.5}}),
    "evaluate by a text": lambda s: api.evaluate(RUN, {"q1": {"d1": "1"}}),
    "evaluate a number": lambda s: api.evaluate({"a": 7}, QRELS),
    "evaluate no measure": lambda s: api.evaluate(RUN, QRELS, "nDCG10"),
    "evaluate a number of measures": lambda s: api.evaluate(RUN, QRELS, 10),
    "evaluate a list of numbers": lambda s: api.evaluate(RUN, QRELS, [10]),
    "evaluate with an unknown baseline": lambda s: api.evaluate({"a": RUN}, QRELS, baseline="b"),
    "evaluate with a number as baseline": lambda s: api.evaluate({"a": RUN}, QRELS, baseline=1),
    "evaluate with an option of files": lambda s: api.evaluate(RUN, QRELS, seeds=True),
    "evaluate with a wrong test": lambda s: api.evaluate(RUN, QRELS, test="z"),
    "evaluate under a minimum": lambda s: api.evaluate(RUN, QRELS, "RR@10", min="RR@10=1"),
    "evaluate with no minimum": lambda s: api.evaluate(RUN, QRELS, min="high"),
    "explain an unknown query": lambda s: api.explain(RUN, QRELS, "q9"),
    "explain a number": lambda s: api.explain(RUN, QRELS, 1),
    "explain no run": lambda s: api.explain(None, QRELS, "q1"),
    "benchmark an unknown name": lambda s: api.benchmark("dl18", runs=RUN),
    "benchmark None": lambda s: api.benchmark(None, runs=RUN),
    "benchmark a number": lambda s: api.benchmark([7], runs=RUN),
    "benchmark no runs": lambda s: api.benchmark("dl19"),
    "benchmark a missing run": lambda s: api.benchmark("dl19", runs=MISSING),
    "benchmark a number as run": lambda s: api.benchmark("dl19", runs=7),
    "benchmark a model without output": lambda s: api.benchmark("dl19", model=s.name),
    "benchmark with an unknown paper": lambda s: api.benchmark("dl19", runs=RUN, against="bert"),
    # reranking
    "rerank None": lambda s: api.rerank(None, s.name, topics=QUERIES, corpus=CORPUS),
    "rerank by a number": lambda s: api.rerank(RUN, 7, topics=QUERIES, corpus=CORPUS),
    "rerank by a retriever": lambda s: api.rerank(RUN, s.name, topics=QUERIES, corpus=CORPUS),
    "rerank without topics": lambda s: api.rerank(RUN, s.name, topics=None, corpus=CORPUS),
    "rerank with a missing corpus": lambda s: api.rerank(
        RUN, MISSING, topics=QUERIES, corpus=MISSING
    ),
    # training
    "mine from None": lambda s: api.mine_negatives(None, topics=QUERIES, qrels=QRELS),
    "mine from nothing": lambda s: api.mine_negatives([], topics=QUERIES, qrels=QRELS),
    "mine without queries": lambda s: api.mine_negatives(RUN, qrels=QRELS, corpus=CORPUS),
    "mine without a corpus": lambda s: api.mine_negatives(RUN, topics=QUERIES, qrels=QRELS),
    "mine by a number": lambda s: api.mine_negatives(RUN, topics=QUERIES, qrels=7, corpus=CORPUS),
    "mine other queries": lambda s: api.mine_negatives(
        {"q9": {"d1": 1.0}}, topics=QUERIES, qrels=QRELS, corpus=CORPUS
    ),
    "mine hits that the corpus lacks": lambda s: api.mine_negatives(
        {qid: {"d99": 1.0} for qid in QUERIES}, topics=QUERIES, qrels=QRELS, corpus=CORPUS
    ),
    "mine with an unknown preset": lambda s: api.mine_negatives(
        RUN, topics=QUERIES, qrels=QRELS, corpus=CORPUS, preset="x"
    ),
    "mine for wrong training data": lambda s: api.mine_negatives(RUN, train=[7], corpus=CORPUS),
    "mine for two files": lambda s: api.mine_negatives(RUN, train=["a", "b"], corpus=CORPUS),
    "mine to a folder": lambda s: api.mine_negatives(
        RUN, topics=QUERIES, qrels=QRELS, corpus=CORPUS, output=s.folder, skip_missing=True
    ),
    "finetune nothing": lambda s: api.finetune(None, [], s.folder / "m"),
    "finetune on nothing": lambda s: api.finetune(s.name, [], s.folder / "m"),
    "finetune on None": lambda s: api.finetune(s.name, None, s.folder / "m"),
    "finetune on a missing file": lambda s: api.finetune(s.name, MISSING, s.folder / "m"),
    "finetune on mixed data": lambda s: api.finetune(s.name, [MISSING, 7], s.folder / "m"),
    "finetune to None": lambda s: api.finetune(s.name, CORPUS, None),
    "finetune with an unknown option": lambda s: api.finetune(
        s.name, CORPUS, s.folder / "m", lerning_rate=1
    ),
    "finetune with a missing config": lambda s: api.finetune(
        s.name, CORPUS, s.folder / "m", config=MISSING
    ),
    "finetune with a number as config": lambda s: api.finetune(
        s.name, CORPUS, s.folder / "m", config=7
    ),
    "finetune with an unknown preset": lambda s: api.finetune(
        s.name, CORPUS, s.folder / "m", preset="x"
    ),
    "pretrain by nothing": lambda s: api.pretrain(None, ["a"], s.folder / "m", model=s.name),
    "pretrain by an unknown objective": lambda s: api.pretrain(
        "bert", ["a"], s.folder / "m", model=s.name
    ),
    "pretrain on nothing": lambda s: api.pretrain("mlm", [], s.folder / "m", model=s.name),
    "pretrain no model": lambda s: api.pretrain("mlm", ["a"], s.folder / "m"),
    # files
    "generate without a model": lambda s: api.generate(CORPUS),
    "generate of a number": lambda s: api.generate(7, queries_model=s.name),
    "generate by a missing model": lambda s: api.generate(CORPUS, queries_model=MISSING),
    "convert a number": lambda s: api.convert(7, s.folder / "c"),
    "convert a missing file": lambda s: api.convert(MISSING, s.folder / "c", kind="run"),
    "convert to a number": lambda s: api.convert(MISSING, 7),
    "convert an unknown kind": lambda s: api.convert(MISSING, s.folder / "c", kind="book"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_an_error_of_denserk(name, setup):
    with pytest.raises(DenserkError) as caught:
        CALLS[name](setup)
    assert "/denserk-" not in f"{caught.value} {caught.value.hint}"
    assert len(str(caught.value)) < 600
