"""What `denserk choose` prints; tests/tasks/test_choose.py has what it decides."""

from denserk.commands.app import run
from tests.support.toy import QRELS


def write_run(path, docid_of):
    path.write_text("".join(f"{qid} Q0 {docid_of(qid)} 1 1.0 run\n" for qid in QRELS))


def test_a_choice_is_printed(toy, monkeypatch, capfd):
    monkeypatch.chdir(toy)
    write_run(toy / "good.trec", lambda qid: next(iter(QRELS[qid])))
    write_run(toy / "bad.trec", lambda qid: "d2")
    inputs = "--corpus corpus.jsonl --topics queries.tsv --qrels qrels.txt --output choice"
    candidates = "--candidates bm25 --candidates good.trec --candidates bad.trec"
    assert run(["choose", *inputs.split(), *candidates.split()]) == 0
    out, err = capfd.readouterr()
    header, *rows = [line.split("\t") for line in out.splitlines()]
    assert header[:4] == ["system", "may be best", "queries", "mean"]
    assert {row[0] for row in rows} == {"bm25", "good", "bad"}
    assert "undecided; any of these may be the best" in err  # of three queries
    assert "choice/index.html: report" in err
    assert run(["choose", *inputs.split(), *candidates.split()]) == 2
    assert "choice is not empty" in capfd.readouterr().err


def test_a_command_that_builds_the_leader_again_is_printed(toy, monkeypatch, capfd):
    monkeypatch.chdir(toy)
    write_run(toy / "bad.trec", lambda qid: "d2")
    inputs = "--corpus corpus.jsonl --topics queries.tsv --qrels qrels.txt --output choice"
    candidates = "--candidates bm25 --candidates bad.trec --budget 0s --set block-size=1"
    assert run(["choose", *inputs.split(), *candidates.split()]) == 0
    messages = capfd.readouterr().err
    assert "  denserk index --type bm25 --corpus corpus.jsonl --output winner/bm25" in messages
    assert "--resume continues" in messages
