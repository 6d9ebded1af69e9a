import gzip
import os
from pathlib import Path

import pytest

from denserk.commands.evaluate import content_of, sort_inputs
from denserk.errors import InputError, UsageError

FILES = {
    "run": "q1 Q0 d1 1 2.0 tag\n",
    "run2": "\n\nq1\tQ0\td1\t1\t2.0\ttag\n",
    "run3": "q1\td1\t1\n",
    "runj": '{"qid": "q1", "docid": "d1", "rank": 1, "score": 2.0}\n',
    "qrels": "q1 0 d1 1\n",
    "qrels2": "query-id\tcorpus-id\tscore\nq1\td1\t1\n",
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    with gzip.open(tmp_path / "qrels.gz", "wt") as out:
        out.write(FILES["qrels"])
    (tmp_path / "qrels-beir").mkdir()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_content(here: Path) -> None:
    for name in (*FILES, "qrels.gz", "qrels-beir"):
        assert content_of(name) == ("qrels" if "qrels" in name else "run")
    assert content_of("beir:scifact") == content_of("irds:msmarco-passage/dev/small") == "qrels"
    assert content_of("pipe") is content_of("-") is None
    for text, message in (("\n \n", "odd: found nothing"), ("\na b\n", "odd, line 2: found 2 col")):
        (here / "odd").write_text(text)
        with pytest.raises(InputError, match=message):
            content_of("odd")


@pytest.mark.parametrize(
    ("files", "runs", "qrels", "expected"),
    [
        (["run", "qrels", "run2"], [], None, (["run", "run2"], "qrels")),
        (["run", "-"], [], None, (["run"], "-")),
        (["run2"], ["run"], "qrels", (["run2", "run"], "qrels")),
        ([], ["run"], "run3", (["run"], "run3")),
    ],
)
def test_every_file_finds_its_part(files, runs, qrels, expected):
    assert sort_inputs(files, runs, qrels) == expected


@pytest.mark.parametrize(
    ("files", "qrels", "message"),
    [
        (["-"], None, "no qrels file given"),
        ([], "qrels", "no run given beside the qrels qrels"),
        (["run", "qrels2"], "qrels", "several qrels files given: qrels2, qrels"),
        (["run", "qrels", "run"], None, "run: given twice"),
    ],
)
def test_rejected_inputs(files: list[str], qrels: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sort_inputs(files, [], qrels)
