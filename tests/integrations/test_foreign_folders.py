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
GENERATOR = np.random.default_rng(5)


def random_text(word_count):
    return " ".join(GENERATOR.choice(WORDS, word_count))


PASSAGES = {f"d{number}": random_text(GENERATOR.integers(1, 12)) for number in range(40)}
QUERIES = {f"q{number}": random_text(3) for number in range(10)}
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
    from sentence_transformers.sentence_transformer import modules as st_modules

    def save(names, about):
        import torch

        torch.manual_seed(3)
        transformer = st.base.modules.Transformer(str(tiny()))
        pooling = st_modules.Pooling(transformer.get_embedding_dimension(), "mean")
        modules = [transformer, pooling]
        for name in names:
            if name == "Normalize":
                modules.append(st.base.modules.Normalize())
            else:
                dense = st.base.modules.Dense(
                    16,
                    12,
                    bias=name != "Identity",
                    activation_function=getattr(torch.nn, name)(),
                )
                modules.append(dense)
        folder = tmp_path / "model"
        st.SentenceTransformer(modules=modules, device="cpu").save(str(folder))
        path = folder / ABOUT
        path.write_text(json.dumps({**json.loads(path.read_text()), **about}))
        return folder, st.SentenceTransformer(str(folder), device="cpu")

    return save


def similarities_of(model):
    """sentence-transformers' similarity of each query with each passage, by their ids."""
    queries = model.encode_query(list(QUERIES.values()))
    passages = model.encode_document(list(PASSAGES.values()))
    scores = model.similarity(queries, passages).tolist()
    return {
        qid: dict(zip(PASSAGES, row, strict=True)) for qid, row in zip(QUERIES, scores, strict=True)
    }


def check_ranking(ranking, similarities, *, euclidean):
    """Compare the scores of a ranking of all passages; ties may be in any order.

    denserk's score is minus the square of the distance.
    """
    for qid, scores in similarities.items():
        hits = ranking[qid]
        assert hits.keys() == scores.keys()
        expected = [scores[docid] for docid in hits]
        if euclidean:
            expected = [-(score**2) for score in expected]
        np.testing.assert_allclose(list(hits.values()), expected, rtol=0, atol=1e-4)
        assert all(score >= next_score - 1e-4 for score, next_score in pairwise(expected))


def command(*words):
    assert run([str(word) for word in (*words, "--device", "cpu")]) == 0


@pytest.mark.parametrize("name", MODELS)
def test_the_command_line_ranks_as_sentence_transformers(saved, tmp_path, name):
    names, about = MODELS[name]
    folder, model = saved(names, about)
    passages = [{"_id": docid, "text": text} for docid, text in PASSAGES.items()]
    queries = [{"_id": qid, "text": text} for qid, text in QUERIES.items()]
    corpus = jsonl(tmp_path / "corpus.jsonl", passages)
    topics = jsonl(tmp_path / "queries.jsonl", queries)
    vectors = tmp_path / "vectors"
    index = tmp_path / "index"
    similarities = similarities_of(model)
    euclidean = about.get("similarity_fn_name") == "euclidean"
    command("encode", "--model", folder, "--corpus", corpus, "--output", vectors)
    command("index", "--input", vectors, "--output", index)
    for source in (index, vectors):
        output = tmp_path / f"{source.name}.trec"
        options = ("--topics", topics, "--hits", "40", "--output", output, "--set", "ties=keep")
        command("search", "--index", source, *options)
        check_ranking(denserk.Run.load(output), similarities, euclidean=euclidean)


@pytest.mark.parametrize("name", ["cosine", "euclidean", "dense, cosine"])
def test_python_and_copies_of_the_model_rank_as_sentence_transformers(saved, tmp_path, name):
    names, about = MODELS[name]
    folder, model = saved(names, about)
    similarities = similarities_of(model)
    words = ("convert", folder, tmp_path / "copy", "--kind", "model", "--to", "denserk")
    assert run([str(word) for word in words]) == 0
    for source in (folder, tmp_path / "copy"):
        encoder = denserk.Encoder.load(source, device="cpu")
        vectors = encoder.encode_passages(list(PASSAGES.values()))
        index = denserk.Index.build(vectors, ids=list(PASSAGES), metric=encoder.metric)
        ranking = index.search(QUERIES, model=encoder, hits=40, ties="keep")
        check_ranking(ranking, similarities, euclidean=name == "euclidean")


def test_a_saved_copy_of_a_euclidean_model_is_euclidean_in_sentence_transformers(saved, tmp_path):
    import sentence_transformers as st

    folder, _ = saved((), {"similarity_fn_name": "euclidean"})
    words = ("convert", folder, tmp_path / "copy", "--kind", "model", "--to", "denserk")
    assert run([str(word) for word in words]) == 0
    assert st.SentenceTransformer(str(tmp_path / "copy")).similarity_fn_name == "euclidean"
