"""Folders that sentence-transformers saved: from encode to search they rank as it does."""

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import denserk
from denserk.commands.app import run
from tests.support.toy import WORDS
from tests.support.training_examples import jsonl

pytestmark = pytest.mark.peer

ABOUT = "config_sentence_transformers.json"
DRAWN = np.random.default_rng(5)
PASSAGES = {f"d{i}": " ".join(DRAWN.choice(WORDS, DRAWN.integers(1, 12))) for i in range(40)}
QUERIES = {f"q{i}": " ".join(DRAWN.choice(WORDS, 3)) for i in range(10)}
# modules after Transformer, what the folder says besides, and pooling
MODELS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "cosine": ((), {"similarity_fn_name": "cosine"}),
    "no similarity": ((), {"similarity_fn_name": None}),
    "dot": ((), {"similarity_fn_name": "dot"}),
    "euclidean": ((), {"similarity_fn_name": "euclidean"}),
    "normalised, euclidean": (("Normalize",), {"similarity_fn_name": "euclidean"}),
    "normalised": (("Normalize",), {"similarity_fn_name": "cosine"}),
    "cut, cosine": ((), {"similarity_fn_name": "cosine", "truncate_dim": 5}),
    "cut, normalised": (("Normalize",), {"similarity_fn_name": "cosine", "truncate_dim": 5}),
    "cut, dot": ((), {"similarity_fn_name": "dot", "truncate_dim": 5}),
    "cut, euclidean": ((), {"similarity_fn_name": "euclidean", "truncate_dim": 5}),
    "cut beyond its size": ((), {"similarity_fn_name": "dot", "truncate_dim": 99}),
    "dense": (("Tanh",), {"similarity_fn_name": "dot"}),
    "dense, cosine": (("Tanh",), {"similarity_fn_name": "cosine"}),
    "dense without bias": (("Identity", "Normalize"), {"similarity_fn_name": "cosine"}),
    "dense, ReLU, cut": (("ReLU",), {"similarity_fn_name": "euclidean", "truncate_dim": 6}),
    "prompts": ((), {"prompts": {"query": "the old ", "document": "a big "}}),
    "prompt of queries": ((), {"prompts": {"query": "the old ", "other": "a big "}}),
}


@pytest.fixture
def saved(tiny, tmp_path):
    """A folder that sentence-transformers saved, and the model that it opens."""
    st = pytest.importorskip("sentence_transformers", minversion="6.0")
    from sentence_transformers.sentence_transformer import modules as of_st

    def save(names, about):
        import torch

        torch.manual_seed(3)
        parts = [st.base.modules.Transformer(str(tiny()))]
        parts.append(of_st.Pooling(parts[0].get_embedding_dimension(), "mean"))
        for name in names:
            if name == "Normalize":
                parts.append(st.base.modules.Normalize())
            else:
                function = getattr(torch.nn, name)()
                bias = name != "Identity"
                parts.append(st.base.modules.Dense(16, 12, bias=bias, activation_function=function))
        folder = tmp_path / "model"
        st.SentenceTransformer(modules=parts, device="cpu").save(str(folder))
        path = folder / ABOUT
        path.write_text(json.dumps({**json.loads(path.read_text()), **about}))
        return folder, st.SentenceTransformer(str(folder), device="cpu")

    return save


@pytest.fixture
def expected():
    def ranking(model):
        """The ids of passages by sentence-transformers' similarity, best first, and the scores."""
        queries = model.encode_query(list(QUERIES.values()))
        passages = model.encode_document(list(PASSAGES.values()))
        scores = model.similarity(queries, passages).numpy()
        names = list(PASSAGES)
        return {
            qid: [(names[i], float(row[i])) for i in np.argsort(-row, kind="stable")]
            for qid, row in zip(QUERIES, scores, strict=True)
        }

    return ranking


def check_ranking(found, expected, *, euclidean):
    """Compare rankings by their scores: ties may be in any order."""
    for qid, hits in expected.items():
        scores = dict(hits)
        ours = found[qid]
        assert ours.keys() == scores.keys()
        theirs = [-(scores[d] ** 2) if euclidean else scores[d] for d in ours]
        np.testing.assert_allclose(list(ours.values()), theirs, rtol=0, atol=1e-4)
        assert all(a >= b - 1e-4 for a, b in pairwise(theirs))


def command(*words):
    assert run([str(word) for word in (*words, "--device", "cpu")]) == 0


@pytest.mark.parametrize("name", MODELS)
def test_the_command_line_ranks_as_sentence_transformers(saved, expected, tmp_path, name):
    names, about = MODELS[name]
    folder, model = saved(names, about)
    corpus, topics = tmp_path / "corpus.jsonl", tmp_path / "queries.jsonl"
    jsonl(corpus, ({"_id": i, "text": text} for i, text in PASSAGES.items()))
    jsonl(topics, ({"_id": i, "text": text} for i, text in QUERIES.items()))
    vectors, index, ranking = tmp_path / "vectors", tmp_path / "index", expected(model)
    euclidean = about.get("similarity_fn_name") == "euclidean"
    command("encode", "--model", folder, "--corpus", corpus, "--output", vectors)
    command("index", "--input", vectors, "--output", index)
    for source in (index, vectors):
        output = tmp_path / f"{source.name}.trec"
        options = ("--topics", topics, "--hits", "40", "--output", output, "--set", "ties=keep")
        command("search", "--index", source, *options)
        check_ranking(denserk.Run.load(output), ranking, euclidean=euclidean)


@pytest.mark.parametrize("name", ["cosine", "euclidean", "dense, cosine"])
def test_python_and_copies_of_the_model_rank_as_sentence_transformers(
    saved, expected, tmp_path, name
):
    names, about = MODELS[name]
    folder, model = saved(names, about)
    ranking, euclidean = expected(model), name == "euclidean"
    words = ("convert", folder, tmp_path / "copy", "--kind", "model", "--to", "denserk")
    assert run([str(word) for word in words]) == 0
    for source in (folder, tmp_path / "copy"):
        encoder = denserk.Encoder.load(source, device="cpu")
        vectors = encoder.encode_passages(list(PASSAGES.values()))
        index = denserk.Index.build(vectors, ids=list(PASSAGES), metric=encoder.metric)
        found = index.search(QUERIES, model=encoder, hits=40, ties="keep")
        check_ranking(found, ranking, euclidean=euclidean)


def test_a_saved_copy_of_a_euclidean_model_is_euclidean_in_sentence_transformers(saved, tmp_path):
    import sentence_transformers as st

    folder, _ = saved((), {"similarity_fn_name": "euclidean"})
    words = ("convert", folder, tmp_path / "copy", "--kind", "model", "--to", "denserk")
    assert run([str(word) for word in words]) == 0
    assert st.SentenceTransformer(str(tmp_path / "copy")).similarity_fn_name == "euclidean"
