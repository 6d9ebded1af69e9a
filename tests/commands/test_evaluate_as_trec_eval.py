import json
from pathlib import Path

import pytest

from denserk.commands.app import run

QRELS = "q1 0 d1 1\nq1 0 d3 1\nq2 0 d2 1\n"
RUN = """\
q1 Q0 d2 3 0.9 t
q1 Q0 d1 2 0.5 t
q1 Q0 d3 1 0.1 t
q2 Q0 d4 2 0.9 t
q2 Q0 d2 1 0.1 t
"""


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("qrels").write_text(QRELS)
    Path("run").write_text(RUN)
    return tmp_path


def measured(capsys, *arguments):
    assert run(["eval", *arguments, "--quiet", "-p", "6"]) == 0, capsys.readouterr().err
    lines = capsys.readouterr().out.splitlines()
    pairs = [line.split("\t") for line in lines]
    return {name: float(value) for name, value in pairs}


def test_max_hits(capsys):
    arguments = ["run", "qrels", "-m", "recip_rank map num_ret R@100"]
    first_two = measured(capsys, *arguments, "-M", "2")
    assert first_two == {"RR": 0.5, "AP": (0.25 + 0.5) / 2, "NumRet": 4, "R@100": 0.75}
    assert measured(capsys, *arguments, "-M1") == {"RR": 0, "AP": 0, "NumRet": 2, "R@100": 0}
    assert measured(capsys, *arguments, "-M", "9") == measured(capsys, *arguments)


@pytest.mark.parametrize(("best", "value"), [("z", 1), ("a", 0)])
def test_max_hits_cuts_ties_as_trec_eval_orders_them(best, value, capsys):
    """Scores that are equal as float32: the higher id stands first."""
    Path("ties").write_text(f"q Q0 m 1 1.00000000001 t\nq Q0 {best} 2 1 t\n")
    Path("judged").write_text(f"q 0 {best} 1\n")
    assert measured(capsys, "ties", "judged", "-m", "RR@10 R@9", "-M", "1") == {
        "RR@10": value,
        "R@9": value,
    }


@pytest.mark.parametrize("suffix", ["trec", "tsv", "jsonl"])
def test_order_by_rank(suffix, capsys):
    rows = [(q, int(rank), d, float(s)) for q, _, d, rank, s, _ in map(str.split, RUN.splitlines())]
    lines = {
        "trec": RUN.splitlines(),
        "tsv": [f"{q}\t{d}\t{rank}" for q, rank, d, _ in sorted(rows)],
        "jsonl": [
            json.dumps({"qid": q, "docid": d, "rank": rank, "score": s}) for q, rank, d, s in rows
        ],
    }[suffix]
    Path("ranked").write_text("\n".join([*lines, ""]))
    arguments = ["ranked", "qrels", "-m", "RR@10 map", "--set", "order=rank"]
    assert measured(capsys, *arguments) == {"RR@10": 1, "AP": pytest.approx(1, abs=1e-6)}
    assert measured(capsys, *arguments, "-M", "1") == {"RR@10": 1, "AP": 0.75}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q1 Q0 d1 0 3 t\nq1 Q0 d2 0 2 t\n", "line 1: found a rank of query q1 twice"),
        ("q1 Q0 d1 first 3 t\n", "line 1: found rank 'first'; expected a whole number"),
        ("q1 d1 0.5\nq1 d2 0.4\n", "line 1: found rank '0.5'"),
    ],
)
def test_ranks_that_order_nothing(text, message, capsys):
    Path("odd").write_text(text)
    assert run(["eval", "odd", "qrels", "--set", "order=rank", "--quiet"]) == 1
    out, err = capsys.readouterr()
    assert (out, message in err, "order=score" in err) == ("", True, True), err


def test_its_default_output(shared_data, capsys):
    """Line for line, but for iprec_at_recall at two levels (see docs/commands/eval.md)."""
    folder = shared_data / "trec-eval"
    files = [str(folder / "qrels.test"), str(folder / "results.test")]
    assert run(["eval", *files, "--format", "trec_eval", "--quiet"]) == 0
    ours = capsys.readouterr().out.splitlines()
    theirs = (folder / "out.test").read_text().splitlines()
    differing_measures = []
    for their_line, our_line in zip(theirs, ours, strict=True):
        if their_line != our_line:
            differing_measures.append(their_line.split()[0])
    assert differing_measures == ["iprec_at_recall_0.10", "iprec_at_recall_0.60"]
