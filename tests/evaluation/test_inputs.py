import gzip
import os
from pathlib import Path

import pytest

from denserk.errors import InputError, UsageError
from denserk.evaluation.inputs import Content, Inputs, content_of, short_names, sort_inputs

FILES = {
    "run": "q1 Q0 d1 1 2.0 tag\n",
    "run2": "\n\nq1\tQ0\td1\t1\t2.0\ttag\n",
    "run3": "q1\td1\t1\n",
    "runj": '{"qid": "q1", "docid": "d1", "rank": 1, "score": 2.0}\n',
    "qrels": "q1 0 d1 1\n",
    "qrels2": "query-id\tcorpus-id\tscore\nq1\td1\t1\n",
    "badqrels": "q1 0 d1 yes\n",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    with gzip.open(tmp_path / "qrels.gz", "wt") as out:
        out.write(FILES["qrels"])
    (tmp_path / "beir").mkdir()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run", Content.RUN),
        ("run2", Content.RUN),
        ("run3", Content.RUN),
        ("runj", Content.RUN),
        ("qrels", Content.QRELS),
        ("qrels2", Content.QRELS),
        ("qrels.gz", Content.QRELS),
        ("badqrels", Content.QRELS),
        ("beir", Content.QRELS),
        ("beir:scifact", Content.QRELS),
        ("irds:msmarco-passage/dev/small", Content.QRELS),
        ("pipe", None),
        ("-", None),
    ],
)
@pytest.mark.usefixtures("here")
def test_content(name: str, content: Content | None) -> None:
    assert content_of(name) is content


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "odd: found nothing; expected a run"),
        ("\n \n", "odd: found nothing; expected a run"),
        ("\na b\n", "odd, line 2: found 2 columns; expected a run"),
        ("a b c d e\n", "odd, line 1: found 5 columns"),
    ],
)
def test_neither(here: Path, text: str, told: str) -> None:
    (here / "odd").write_text(text)
    with pytest.raises(InputError) as caught:
        content_of("odd")
    assert caught.value.message.startswith(told)


@pytest.mark.parametrize(
    ("files", "runs", "qrels", "expected"),
    [
        (["run", "qrels"], [], None, Inputs(("run",), "qrels")),
        (["qrels", "run"], [], None, Inputs(("run",), "qrels")),
        (["run", "qrels", "run2"], [], None, Inputs(("run", "run2"), "qrels")),
        (["qrels2", "run3"], [], None, Inputs(("run3",), "qrels2")),
        (["-", "qrels"], [], None, Inputs(("-",), "qrels")),
        (["run", "-"], [], None, Inputs(("run",), "-")),
        (["pipe", "qrels"], [], None, Inputs(("pipe",), "qrels")),
        ([], ["run", "run2"], "qrels", Inputs(("run", "run2"), "qrels")),
        ([], ["run"], "-", Inputs(("run",), "-")),
        ([], ["-"], "qrels", Inputs(("-",), "qrels")),
        (["run2"], ["run"], "qrels", Inputs(("run2", "run"), "qrels")),
        (["qrels"], ["run"], None, Inputs(("run",), "qrels")),
        (["run"], [], "qrels", Inputs(("run",), "qrels")),
        (["run"], [], "beir:scifact/test", Inputs(("run",), "beir:scifact/test")),
        ([], ["run"], "run3", Inputs(("run",), "run3")),
    ],
)
@pytest.mark.usefixtures("here")
def test_every_file_finds_its_part(
    files: list[str], runs: list[str], qrels: str | None, expected: Inputs
) -> None:
    assert sort_inputs(files, runs, qrels) == expected


@pytest.mark.parametrize(
    ("files", "runs", "qrels", "told"),
    [
        ([], [], None, "no qrels file given"),
        (["run"], [], None, "no qrels file given (run is a run)"),
        (["-"], [], None, "no qrels file given"),
        (["run", "run2"], [], None, "no qrels file given (run, run2 are runs)"),
        (["qrels"], [], None, "no run given beside the qrels qrels"),
        ([], [], "qrels", "no run given beside the qrels qrels"),
        (["run", "qrels", "qrels2"], [], None, "several qrels files given: qrels, qrels2"),
        (["run", "qrels2"], [], "qrels", "several qrels files given: qrels2, qrels"),
        (["run", "qrels", "run"], [], None, "run: given twice"),
        ([], ["-"], "-", "-: given twice"),
        ([], ["qrels"], "run", "--run qrels holds qrels, not a run"),
        ([], ["qrels", "qrels2"], "run", "--run qrels, --run qrels2 holds qrels, not a run"),
        ([], ["run"], "run2", "--qrels run2 holds a run, not qrels"),
        ([], ["-"], "runj", "--qrels runj holds a run, not qrels"),
        (["absent", "qrels"], [], None, "absent: no such file"),
        (["out/absent", "qrels"], [], None, "out/absent: no such file"),
    ],
)
@pytest.mark.usefixtures("here")
def test_refusals(files: list[str], runs: list[str], qrels: str | None, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        sort_inputs(files, runs, qrels)
    assert caught.value.message == told


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/b/bm25.trec.gz"], ["bm25"]),
        (["run.txt", "run.trec"], ["run.txt", "run.trec"]),
        (["a/run.txt", "b/run.txt", "tasb.run"], ["a/run", "b/run", "tasb"]),
        (["results.test", "-"], ["results.test", "stdin"]),
        ([".run"], [".run"]),
        (["run.bm25.v1.2.jsonl"], ["run.bm25.v1.2"]),
    ],
)
def test_names_of_runs(paths: list[str], names: list[str]) -> None:
    assert short_names(paths) == names
