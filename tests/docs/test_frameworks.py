"""The retrievers of docs/howto/langchain.md, llamaindex.md and haystack.md in their frameworks.

Each page's Python runs from top to bottom in an environment with the framework, which
`bash tests/benchmarks/peers.sh build/peers langchain llamaindex haystack` makes. Then the hits of
the page's retrievers are compared with those of denserk.
"""

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.test_readme import ROOT, blocks, commands, program, run, write_hub
from tests.support import faults
from tests.support.toy import write_toy

PEERS = ROOT / "build" / "peers"
QUIET = {
    "DO_NOT_TRACK": "1",
    "HAYSTACK_TELEMETRY_ENABLED": "false",
    "LANGSMITH_TRACING": "false",
}
# What every page's retrievers are compared with; `dense`, `sparse` and `both` return the ids and
# scores of a page's retriever for a query, `both` of the two indexes fused.
COMPARISON = """
from concurrent.futures import ThreadPoolExecutor

queries = {"q1": "cat in a house", "q2": "river boat", "q3": "moon and star", "q4": "zebra"}


def run_of(index):
    # one query after the other: rounding depends on what is encoded together
    return {qid: index.search({qid: text})[qid] for qid, text in queries.items()}


dense_run = run_of(denserk.Index.open("passages/"))
sparse_run = run_of(denserk.BM25.open("sparse/"))
hybrid_run = denserk.fuse([sparse_run, dense_run])


def assert_hits(retrieve, run, hits):
    # twice at once, from threads
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(retrieve, [*queries.values()] * 2))
    for (ids, scores), qid in zip(results, [*queries] * 2, strict=True):
        expected = list(run[qid].items())[:hits]
        assert ids == [docid for docid, _ in expected], (qid, ids, expected)
        for score, (_, expected_score) in zip(scores, expected, strict=True):
            assert abs(score - expected_score) < 1e-5


assert_hits(dense, dense_run, 3)
assert_hits(sparse, sparse_run, 3)
assert_hits(both, hybrid_run, 3)
"""
LANGCHAIN = """
def hits_of(retriever):
    def retrieve(query):
        documents = retriever.invoke(query)
        return [each.id for each in documents], [each.metadata["score"] for each in documents]

    return retrieve


both = hits_of(retriever)
dense = hits_of(DenserkRetriever(indexes=[denserk.Index.open("passages/")], k=3))
sparse = hits_of(DenserkRetriever(indexes=[denserk.BM25.open("sparse/")], k=3))
"""
LANGCHAIN_RESULTS = """
expected = retriever.invoke("when does the moon rise")
assert len(expected) == 3
assert documents_of_query == expected
assert documents_of_queries == [expected, retriever.invoke("where does the river run")]
(moon,) = [document for document in expected if document.id == "d4"]
assert moon.page_content == "the moon rises in the night and the star falls"
assert moon.metadata["title"] == "Moon"
assert chain.invoke("when does the moon rise") == "At night [d4]."
prompt_text = (inputs | prompt).invoke("when does the moon rise").to_string()
assert "[d4] the moon rises" in prompt_text and "Question: when does the moon rise" in prompt_text
(document,) = in_memory.invoke("the river")
assert by_id[document.id].metadata["source"] == "river.md"

from langchain_core.tools import create_retriever_tool

tool = create_retriever_tool(retriever, "search", "Searches the passages.")
assert "the moon rises" in tool.invoke({"query": "moon"})
"""
LLAMAINDEX = """
def hits_of(retriever):
    def retrieve(query):
        hits = retriever.retrieve(query)
        return [hit.node.node_id for hit in hits], [hit.score for hit in hits]

    return retrieve


both = hits_of(retriever)
dense = hits_of(DenserkRetriever([denserk.Index.open("passages/")], top_k=3))
sparse = hits_of(DenserkRetriever([denserk.BM25.open("sparse/")], top_k=3))
"""
LLAMAINDEX_RESULTS = """
expected = retriever.retrieve("when does the moon rise")
assert len(expected) == 3
assert hits_of_async == expected
(moon,) = [hit.node for hit in expected if hit.node.node_id == "d4"]
assert moon.text == "the moon rises in the night and the star falls"
assert moon.metadata["title"] == "Moon"
assert response.source_nodes == expected
assert "the moon rises in the night" in str(response)
(hit,) = in_memory.retrieve("the river")
assert parsed_nodes[hit.node.node_id].metadata["source"] == "river.md"

from llama_index.core.tools import RetrieverTool

tool = RetrieverTool.from_defaults(retriever, description="Searches the passages.")
assert "the moon rises" in tool.call("moon").content
"""
HAYSTACK = """
def hits_of(retriever):
    def retrieve(query):
        documents = retriever.run(query)["documents"]
        return [each.id for each in documents], [each.score for each in documents]

    return retrieve


both = hits_of(retriever)
dense = hits_of(DenserkRetriever(["passages/"], top_k=3))
sparse = hits_of(DenserkRetriever(["sparse/"], top_k=3))
"""
HAYSTACK_RESULTS = """
expected = retriever.run(question, top_k=4)["documents"]
assert len(expected) == 4
assert result["retriever"]["documents"] == expected
assert result_of_async["retriever"]["documents"] == expected
assert result["llm"]["replies"][0].text == "At night [d4]."
(moon,) = [document for document in expected if document.id == "d4"]
assert moon.content == "the moon rises in the night and the star falls"
assert moon.meta == {"title": "Moon"}
documents = {"documents": expected, "question": question}
(message,) = pipeline.get_component("prompt").run(**documents)["prompt"]
assert "[d4] the moon rises" in message.text and f"Question: {question}" in message.text
(document,) = of_split.run("the river")["documents"]
assert document.meta["title"] == "river.md"
assert document.id == split_documents[1].id
for part in ("passages/", "sparse/", "top_k: 4"):
    assert part in pipeline.dumps()
"""


class Checks(NamedTuple):
    """Python that runs behind that of a page."""

    retrievers: str  # defines `dense`, `sparse` and `both`
    results: str  # of the page's own examples


CHECKS = {
    "langchain": Checks(LANGCHAIN, LANGCHAIN_RESULTS),
    "llamaindex": Checks(LLAMAINDEX, LLAMAINDEX_RESULTS),
    "haystack": Checks(HAYSTACK, HAYSTACK_RESULTS),
}


def page_of(framework: str) -> Path:
    return ROOT / "docs" / "howto" / f"{framework}.md"


def python_of(framework: str) -> Path:
    """Return the Python of a framework's environment; skip the test if there is none."""
    environment = PEERS / framework
    if not (environment / "installed").exists():
        pytest.skip(f"no {environment}: bash tests/benchmarks/peers.sh build/peers {framework}")
    return environment / "bin" / "python"


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """The toy collection with the indexes that all pages build, and variables with the hub."""
    top = tmp_path_factory.mktemp("frameworks")
    write_hub(top / "hub")
    toy = write_toy(top / "toy")
    environment = {
        **os.environ,
        **QUIET,
        "HF_HUB_CACHE": str(top / "hub"),
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
    }
    building_commands = [list(commands(page_of(framework))) for framework in CHECKS]
    assert all(words == building_commands[0] for words in building_commands)
    for words in building_commands[0]:
        process = faults.denserk(*words, cwd=toy, env=environment)
        assert process.returncode == 0, process.stderr
    return toy, environment


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("framework", CHECKS)
def test_the_page_runs_and_finds_what_denserk_finds(framework, collection):
    python = python_of(framework)
    toy, environment = collection
    page = page_of(framework)
    page_blocks = [
        (block.line, block.language, block.code)
        for block in blocks(page)
        if block.language == "python"
    ]
    checks = CHECKS[framework]
    for code in (checks.retrievers, COMPARISON, checks.results):
        page_blocks.append((1, "python", code))
    (toy / f"page_of_{framework}.py").write_text(program(page.name, page_blocks))
    run([str(python), f"page_of_{framework}.py"], toy, environment)


@pytest.mark.peer
@pytest.mark.parametrize("framework", CHECKS)
def test_the_page_names_the_version_that_is_tested(framework):
    python = python_of(framework)
    packages = {"langchain": "langchain-core", "llamaindex": "llama-index-core"}
    name = packages.get(framework, "haystack-ai")
    code = f"from importlib.metadata import version; print(version({name!r}))"
    process = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    major, minor, *_ = process.stdout.split(".")
    page = page_of(framework).read_text("utf-8")
    assert f"`{name}`" in page
    assert f"version {major}.{minor}." in page.replace("\n", " ")
