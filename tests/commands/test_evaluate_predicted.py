"""`denserk eval --predicted` and `--draw`: few human labels and many predicted ones."""

import json
import random
from pathlib import Path

import pytest

from denserk.commands.app import run
from denserk.io.draws import draw_order
from denserk.io.manifest import Kind, read_manifest
from tests.benchmarks import predicted_replays
from tests.support.console import warnings_of

QIDS = [f"q{number:03}" for number in range(150)]
PASSAGES = [f"d{number}" for number in range(5)]


def write_labels(path, grades_by_qid):
    lines = []
    for qid, grades in grades_by_qid.items():
        lines += [f"{qid} 0 {docid} {grade}\n" for docid, grade in grades.items()]
    path.write_text("".join(lines))


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Runs a.trec and b.trec, qrels.txt of all queries, and judge.qrels, with some wrong."""
    monkeypatch.chdir(tmp_path)
    generator = random.Random(1)
    truth = {}
    predicted = {}
    for qid in QIDS:
        relevant = generator.choice(PASSAGES)
        truth[qid] = {docid: int(docid == relevant) for docid in PASSAGES}
        wrong = {docid: generator.random() < 0.05 for docid in PASSAGES}
        predicted[qid] = {docid: truth[qid][docid] ^ wrong[docid] for docid in PASSAGES}
    write_labels(tmp_path / "qrels.txt", truth)
    write_labels(tmp_path / "judge.qrels", predicted)
    for name, noise in (("a", 3.0), ("b", 0.8)):
        lines = []
        for qid in QIDS:
            scores = {docid: truth[qid][docid] + noise * generator.random() for docid in PASSAGES}
            ranked = sorted(scores, key=lambda docid: -scores[docid])
            for rank, docid in enumerate(ranked, start=1):
                lines.append(f"{qid} Q0 {docid} {rank} {scores[docid]} {name}\n")
        (tmp_path / f"{name}.trec").write_text("".join(lines))
    return tmp_path


def judge(files, qids):
    """Write human.qrels: the true labels of some queries."""
    lines = (files / "qrels.txt").read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.split()[0] in qids]
    (files / "human.qrels").write_text("".join(kept))


def draw(count, *options):
    command = ["eval", "a.trec", "b.trec", "--predicted", "judge.qrels", "--draw", str(count)]
    return run([*command, "--seed", "1", "--output", "draw.tsv", "--overwrite", *options])


def drawn_qids():
    _, *lines = Path("draw.tsv").read_text().splitlines()
    return list(dict.fromkeys(line.split("\t")[0] for line in lines))


def evaluated(capsys, *options):
    command = ["eval", "a.trec", "b.trec", "human.qrels", "--predicted", "judge.qrels"]
    assert run([*command, "-m", "RR@10 Success@1", "--format", "json", *options]) == 0
    return json.loads(capsys.readouterr().out)["predicted"]


def test_with_queries_each_line_has_the_same_columns(files, capsys):
    judge(files, QIDS[:20])
    command = ["eval", "a.trec", "b.trec", "human.qrels", "--predicted", "judge.qrels", "-q"]
    assert run([*command, "-m", "RR@10", "--baseline", "a", "--format", "tsv", "--quiet"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert {len(fields) for fields in lines} == {4}
    statistics = {fields[2] for fields in lines if fields[1] == "all"}
    assert {"RR@10:powered_mean", "RR@10:powered_difference"} <= statistics


def test_a_smaller_draw_begins_a_larger_one(files):
    assert draw(10) == 0
    first_qids = drawn_qids()
    assert first_qids == draw_order(QIDS, 1)[:10]
    content = (files / "draw.tsv").read_bytes()
    assert draw(20) == 0
    assert drawn_qids()[:10] == first_qids
    assert draw(10) == 0
    assert (files / "draw.tsv").read_bytes() == content


def test_a_drawn_query_has_the_first_hits_of_all_runs_in_the_order_of_their_ids(files):
    assert draw(1, "--set", "draw-depth=2") == 0
    (qid,) = drawn_qids()
    expected = set()
    for name in ("a", "b"):
        for line in (files / f"{name}.trec").read_text().splitlines():
            fields = line.split()
            if fields[0] == qid and int(fields[3]) <= 2:
                expected.add(fields[2])
    rows = [line.split("\t") for line in (files / "draw.tsv").read_text().splitlines()[1:]]
    assert [row[:3] for row in rows] == [[qid, docid, ""] for docid in sorted(expected)]


def test_a_draw_has_texts_where_they_are_known(files):
    (files / "topics.tsv").write_text("".join(f"{qid}\tquestion {qid}\n" for qid in QIDS))
    passages = [
        json.dumps({"_id": docid, "title": "", "text": f"on {docid}"}) for docid in PASSAGES
    ]
    (files / "corpus.jsonl").write_text("\n".join(passages))
    assert draw(2, "--topics", "topics.tsv", "--corpus", "corpus.jsonl") == 0
    _, row, *_ = (files / "draw.tsv").read_text().splitlines()
    qid, docid, _, query, text = row.split("\t")
    assert (query, text) == (f"question {qid}", f"on {docid}")


def test_queries_are_drawn_from_topics_or_runs_where_nothing_is_predicted(files):
    command = ["eval", "a.trec", "--draw", "5", "--seed", "1", "--output", "draw.tsv"]
    assert run(command) == 0
    assert drawn_qids() == draw_order(QIDS, 1)[:5]
    (files / "topics.tsv").write_text("".join(f"{qid}\tquestion\n" for qid in QIDS[:7]))
    assert run([*command, "--overwrite", "--topics", "topics.tsv"]) == 0
    assert drawn_qids() == draw_order(QIDS[:7], 1)[:5]
    manifest = read_manifest("draw.tsv", Kind.DRAW)
    assert (manifest.contents["seed"], manifest.contents["queries"]) == (1, 7)


def test_predictions_shorten_the_intervals_of_a_drawn_sample(files, capsys):
    assert draw(30) == 0
    judge(files, drawn_qids()[:25])  # the first ones of the draw
    predicted = evaluated(capsys, "--drawn", "draw.tsv", "--baseline", "a")
    assert predicted["sample"] == "drawn"
    assert (predicted["human_queries"], predicted["predicted_queries"]) == (25, 150)
    mean = predicted["means"]["a"]["RR@10"]
    assert mean["gain"] == "helps"
    assert mean["effective_queries"] > 30
    human, powered = mean["human"], mean["powered"]
    assert powered["high"] - powered["low"] < human["high"] - human["low"]
    difference = predicted["differences"]["b"]["RR@10"]
    assert difference["powered"]["low"] < difference["powered"]["mean"]
    assert difference["p"] <= difference["corrected"]


def test_the_human_columns_are_what_eval_gives_without_predictions(files, capsys):
    judge(files, QIDS[:20])
    command = ["eval", "a.trec", "b.trec", "human.qrels", "-m", "RR@10", "--baseline", "a"]
    assert run([*command, "--format", "json"]) == 0
    human_only = json.loads(capsys.readouterr().out)
    predicted = evaluated(capsys, "--baseline", "a", "-m", "RR@10")
    difference = human_only["comparison"]["runs"]["b"]["RR@10"]
    assert predicted["differences"]["b"]["RR@10"]["human"]["mean"] == difference["mean"]
    assert predicted["means"]["a"]["RR@10"]["human"]["mean"] == pytest.approx(
        human_only["runs"][0]["measures"]["RR@10"]
    )


def test_a_filled_draw_is_read_as_qrels_and_shows_itself_that_it_is_one(files, capsys):
    assert draw(20) == 0
    grades = {}
    for line in (files / "qrels.txt").read_text().splitlines():
        qid, _, docid, grade = line.split()
        grades[qid, docid] = grade
    header, *lines = (files / "draw.tsv").read_text().splitlines(keepends=True)
    filled = [header]
    for line in lines[:-10]:  # the last two queries are not judged
        qid, docid, _, *texts = line.split("\t")
        filled.append("\t".join([qid, docid, grades[qid, docid], *texts]))
    (files / "draw.tsv").write_text("".join([*filled, *lines[-10:]]))
    command = ["eval", "a.trec", "draw.tsv", "--predicted", "judge.qrels", "--format", "json"]
    assert run(command) == 0
    predicted = json.loads(capsys.readouterr().out)["predicted"]
    assert (predicted["sample"], predicted["human_queries"]) == ("drawn", 18)


def test_what_no_draw_shows_is_warned_of(files, capsys, caplog):
    judge(files, QIDS[:20])
    assert evaluated(capsys)["sample"] == "unknown"
    assert "random sample" in warnings_of(caplog)[-1]
    assert draw(20) == 0
    assert evaluated(capsys, "--drawn", "draw.tsv")["sample"] == "not the first of the draw"
    assert "not valid" in warnings_of(caplog)[-1]


@pytest.mark.parametrize("format", ["table", "tsv", "markdown"])
def test_every_format_has_both_intervals(files, capsys, format):
    judge(files, QIDS[:20])
    command = ["eval", "a.trec", "b.trec", "human.qrels", "--predicted", "judge.qrels"]
    assert run([*command, "--baseline", "a.trec", "-m", "RR@10", "--format", format]) == 0
    output = capsys.readouterr().out
    if format == "tsv":
        assert "b\tRR@10:powered_difference_p\t" in output
        assert "a\tRR@10:powered_mean_low\t" in output
    else:
        assert "with predictions" in output
        assert "20 queries have human labels, 150 predicted ones" in output


def test_lines_of_one_run_have_no_name(files, capsys):
    judge(files, QIDS[:20])
    command = ["eval", "a.trec", "human.qrels", "--predicted", "judge.qrels", "-m", "RR@10"]
    assert run([*command, "--format", "tsv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {len(line.split("\t")) for line in lines} == {2}
    assert lines[1].startswith("RR@10:human_mean\t")


def test_latex_has_a_table_of_means_and_one_of_differences(files, capsys):
    judge(files, QIDS[:20])
    command = ["eval", "a.trec", "b.trec", "human.qrels", "--predicted", "judge.qrels"]
    assert run([*command, "--baseline", "a.trec", "-m", "RR@10", "--format", "latex"]) == 0
    results, means, differences = capsys.readouterr().out.split("\n\n")
    assert r"\label{tab:results}" in results
    assert r"\caption{Means with predicted labels. 20 queries have human labels, 150" in means
    assert r"a & RR@10 & 0." in means
    assert r"\caption{Differences with predicted labels. $^{\dagger}$ differs from a" in differences
    assert r"b & RR@10 & +0." in differences


@pytest.mark.parametrize(("labels", "exit_code"), [("", 1), (None, 2)])
def test_predicted_labels_are_checked_before_runs_are_read(files, caplog, labels, exit_code):
    judge(files, QIDS[:20])
    (files / "a.trec").write_text("q001 Q0 d1 1 no-score a\n")
    if labels is not None:
        (files / "labels.qrels").write_text(labels)
    command = ["eval", "--run", "a.trec", "--qrels", "human.qrels", "--predicted", "labels.qrels"]
    assert run(command) == exit_code
    assert "labels.qrels" in caplog.text


def test_the_report_has_a_section(files):
    pytest.importorskip("matplotlib")
    judge(files, QIDS[:20])
    command = ["eval", "a.trec", "b.trec", "human.qrels", "--predicted", "judge.qrels"]
    assert run([*command, "--report", "report"]) == 0
    page = (files / "report/index.html").read_text("utf-8")
    before, _, section = page.partition('<section id="predicted">')
    assert "with predictions" not in before
    assert "with predictions" in section


LABELS = ("--predicted", "judge.qrels")
WRONG = {
    "counts": (("human.qrels", *LABELS, "-m", "NumRet"), 2, "count"),
    "a geometric mean": (("human.qrels", *LABELS, "-m", "gm_map"), 2, "geometric mean"),
    "judged": (("human.qrels", *LABELS, "-m", "Judged@10"), 2, "Judged@10"),
    "not complete": (("human.qrels", *LABELS, "--no-complete"), 2, "--no-complete"),
    "seeds": (("human.qrels", *LABELS, "--seeds"), 2, "exclude each other"),
    "drawn alone": (("human.qrels", "--drawn", "draw.tsv"), 2, "--drawn needs --predicted"),
    "no draw": (("human.qrels", *LABELS, "--drawn", "a.trec"), 2, "a.trec has no manifest.json"),
    "trec_eval": (("human.qrels", *LABELS, "-m", "P@1", "-o", "trec_eval"), 2, "has no lines for"),
    "trec_eval's measures": (("human.qrels", *LABELS, "-o", "trec_eval"), 2, "has no lines for"),
    "tukey": (
        ("human.qrels", *LABELS, "--baseline", "a.trec", "--correction", "tukey"),
        2,
        "--predicted and --correction tukey exclude each other",
    ),
    "draw and qrels": (("human.qrels", "--draw", "3", "--output", "o.tsv"), 2, "human.qrels"),
    "draw without output": (("--draw", "3"), 2, "--output"),
    "draw too many": ((*LABELS, "--draw", "151", "--output", "o.tsv"), 2, "only 150 queries"),
    "seed alone": (("human.qrels", "--seed", "3"), 2, "--seed needs --draw"),
    "unpredicted queries": (("human.qrels", "--predicted", "few.qrels"), 1, "no predicted label"),
    "few queries": (("few.qrels", *LABELS), 1, "at least 4"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input(files, capsys, case):
    judge(files, QIDS[:20])
    write_labels(files / "few.qrels", {qid: {"d1": 1} for qid in QIDS[:3]})
    options, status, message = WRONG[case]
    assert run(["eval", "a.trec", "b.trec", *options]) == status
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_replays_run(files, capsys):
    folder = files / "runs" / "made-up"
    folder.mkdir(parents=True)
    (files / "qrels.txt").rename(folder / "qrels.txt")
    (files / "a.trec").rename(folder / "bm25.trec")
    (files / "b.trec").rename(folder / "minilm.trec")
    options = ["--runs", "runs", "--collection", "made-up", "--replays", "5"]
    predicted_replays.main([*options, "--predicted", "50"])
    predicted_replays.main([*options, "--finite"])
    assert "flipped 20" in capsys.readouterr().out
