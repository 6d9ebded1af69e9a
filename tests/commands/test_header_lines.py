"""Header lines of every table are recognised by the names of their columns, in any order."""

import gzip
import json

import ir_measures
import pytest

from denserk.commands.app import run
from tests.support.console import warnings_of

HITS = [
    ("Q0", "D0", 1, 1.25),
    ("Q0", "D1", 2, 1.0),
    ("Q1", "D3", 1, 3.5),
    ("Q1", "D0", 2, 2.5),
    ("Q2", "D10", 1, 3.5),
    ("Q2", "D4", 2, 2.5),
]
GRADES = [("Q0", "D0", 0), ("Q0", "D1", 1), ("Q1", "D3", 2), ("Q2", "D0", 1), ("Q2", "D3", 2)]
PLAIN_RUN = "".join(f"{q} Q0 {d} {rank} {score} a\n" for q, d, rank, score in HITS)
PLAIN_QRELS = "".join(f"{q} 0 {d} {grade}\n" for q, d, grade in GRADES)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.trec").write_text(PLAIN_RUN)
    (tmp_path / "plain.qrels").write_text(PLAIN_QRELS)
    return tmp_path


def measured(run_file, qrels_file, capsys):
    capsys.readouterr()
    assert run(["eval", run_file, qrels_file, "-m", "nDCG@10 RR@10 AP", "--quiet"]) == 0
    return capsys.readouterr().out.split()[1::2]


def expected_measures(folder):
    """The values of ir_measures, which reads no header line, for the tables without one."""
    qrels = list(ir_measures.read_trec_qrels(str(folder / "plain.qrels")))
    hits = list(ir_measures.read_trec_run(str(folder / "plain.trec")))
    names = ["nDCG@10", "RR@10", "AP"]
    values = ir_measures.calc_aggregate([*map(ir_measures.parse_measure, names)], qrels, hits)
    by_name = {str(measure): value for measure, value in values.items()}
    return [f"{by_name[name]:.4f}" for name in names]


def columns(header, separator="\t", end="\n"):
    """The run under a header, its columns in the header's order."""
    position_by_key = {"q": 0, "d": 1, "r": 2, "s": 3}
    lines = [separator.join(name for name, _ in header)]
    for hit in HITS:
        values = {"0": "Q0", "t": "a"}
        for key, position in position_by_key.items():
            values[key] = str(hit[position])
        lines.append(separator.join(values[key] for _, key in header))
    return end.join(lines) + end


TALENTCLEF = [("q_id", "q"), ("Q0", "0"), ("doc_id", "d"), ("rank", "r"), ("score", "s")]
TALENTCLEF += [("tag", "t")]
RUNS = [
    # https://talentclef.github.io/talentclef/docs/talentclef-2025/evaluation/: "The submissions
    # must contains the column headers: q_id Q0 doc_id rank score tag"
    columns(TALENTCLEF, " "),
    columns(TALENTCLEF),
    "\ufeff" + columns(TALENTCLEF, end="\r\n"),
    "\n# a comment\n" + columns(TALENTCLEF),
    columns([("Query ID", "q"), ("Doc ID", "d"), ("Score", "s")]),
    columns([("docid", "d"), ("qid", "q"), ("score", "s")], " "),
    columns([("SCORE", "s"), ("DOCNO", "d"), ("RANK", "r"), ("TOPIC", "q")]),
    columns([("query-id", "q"), ("corpus-id", "d"), ("rank", "r"), ("score", "s")], " "),
    columns([("run_id", "t"), ("query_id", "q"), ("doc_id", "d"), ("rank", "r"), ("score", "s")]),
    columns([('"qid"', "q"), ('"docid"', "d"), ('"score"', "s")]),
]


@pytest.mark.parametrize("text", RUNS)
def test_a_run_with_a_header_has_the_measures_of_the_run_without(text, folder, capsys):
    (folder / "run").write_text(text)
    (folder / "run.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("run", "run.gz"):
        assert measured(name, "plain.qrels", capsys) == expected_measures(folder)


def test_a_run_whose_header_names_ranks_alone(folder, capsys):
    (folder / "run").write_text("rank docid qid\n1 D1 Q0\n2 D0 Q0\n2 D3 Q1\n1 D0 Q1\n")
    (folder / "plain.trec").write_text(
        "Q0 Q0 D1 1 2 a\nQ0 Q0 D0 2 1 a\nQ1 Q0 D3 2 1 a\nQ1 Q0 D0 1 2 a\n"
    )
    assert measured("run", "plain.qrels", capsys) == expected_measures(folder)


def test_three_columns_that_a_header_calls_scores_are_no_ranks(folder, capsys):
    lines = "Q0 D0 1\nQ0 D1 2\nQ1 D3 1\nQ1 D0 2\n"  # would count as ranks
    (folder / "run").write_text("qid docid score\n" + lines)
    trec = [line.split() for line in lines.splitlines()]
    (folder / "plain.trec").write_text("".join(f"{q} Q0 {d} 1 {s} a\n" for q, d, s in trec))
    assert measured("run", "plain.qrels", capsys) == expected_measures(folder)


def test_rows_that_are_quoted_as_their_header_is(folder, capsys):
    rows = "".join(f'"{q}"\t"{d}"\t{score}\n' for q, d, _, score in HITS)
    (folder / "run").write_text('"qid"\t"docid"\t"score"\n' + rows)
    grades = "".join(f'"{q}"\t"{d}"\t{grade}\n' for q, d, grade in GRADES)
    (folder / "qrels").write_text('"qid"\t"docid"\t"relevance"\n' + grades)
    assert measured("run", "qrels", capsys) == expected_measures(folder)


def test_the_tag_of_a_quoted_run_has_no_quotes(folder, capsys):
    rows = ["qid", "Q0", "docid", "rank", "score", "tag"], ["Q0", "Q0", "D1", "1", "2.5", "mine"]
    lines = ["\t".join(f'"{cell}"' for cell in row) for row in rows]
    (folder / "run").write_text("\n".join(lines) + "\n")
    assert run(["eval", "run", "plain.qrels", "-m", "runid map", "--format", "trec_eval"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["runid", "all", "mine"]


def test_a_long_run_with_a_header_is_the_run_without(folder, capsys):
    lines = [f"q{q} Q0 d{d} {d + 1} {1000 - d} tag\n" for q in range(100) for d in range(600)]
    (folder / "long.trec").write_text("".join(lines))
    (folder / "headed.trec").write_text("qid Q0 docid rank score tag\n" + "".join(lines))
    swapped = [" ".join(line.split()[column] for column in (2, 4, 0)) + "\n" for line in lines]
    (folder / "swapped.tsv").write_text("docno sim topic_id\n" + "".join(swapped))
    for name in ("long.trec", "headed.trec", "swapped.tsv"):
        assert run(["convert", name, f"{name}.out", "--kind", "run", "--to", "trec"]) == 0
        assert (folder / f"{name}.out").read_bytes() == (folder / "long.trec.out").read_bytes()
    (folder / "headed.trec").write_text("qid Q0 docid rank score tag\n" + lines[0] + "q d\n")
    assert run(["convert", "headed.trec", "out", "--kind", "run", "--to", "trec"]) == 1
    assert "line 3: found 2 columns" in capsys.readouterr().err


def test_a_column_that_no_reader_knows_is_named(folder, capsys):
    (folder / "run").write_text("qid docno runk score\nQ0 D0 1 2.5\n")
    (folder / "qrels").write_text("qid docno judge\nQ0 D0 1\n")
    for arguments in (
        ["run", "--qrels", "plain.qrels"],
        ["--run", "plain.trec", "--qrels", "qrels"],
    ):
        arguments = ["--run", *arguments] if arguments[0] == "run" else arguments
        assert run(["eval", *arguments]) == 1
    err = capsys.readouterr().err
    assert "runk: not known" in err
    assert "judge: not known" in err


def test_a_run_of_a_header_alone_is_empty(folder, capsys):
    (folder / "run").write_text("qid docid score")
    assert run(["eval", "--run", "run", "--qrels", "plain.qrels"]) == 1
    assert run(["fuse", "run", "plain.trec", "--output", "fused.trec"]) == 1
    assert "run: found an empty run" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "query-id\tcorpus-id\tscore\nQ0\tD0\t1\n",
        '{"query-id": "Q0", "corpus-id": "D0", "score": 1}\n',
        "qid docid relevance\nQ0 D0 1\n",
    ],
)
def test_qrels_are_no_run(text, folder, capsys):
    (folder / "file").write_text(text)
    assert run(["eval", "--run", "file", "--qrels", "plain.qrels"]) == 1
    assert run(["fuse", "file", "plain.trec", "--output", "fused.trec"]) == 1
    assert "line 1" in capsys.readouterr().err


QRELS = [
    ("query-id\tcorpus-id\tscore", "q\td\tg"),
    ("QUERY_ID\tCorpus_ID\tScore", "q\td\tg"),
    ("docid\tqid\trelevance", "d\tq\tg"),
    ("qid iter docid rel", "q 0 d g"),
    ("TOPIC ITERATION DOCUMENT# RELEVANCY", "q 0 d g"),
    ("q_id 0 doc_id label", "q 0 d g"),
    ("\ufeffgrade\tQuery ID\tDoc ID", "g\tq\td"),
]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(("header", "row"), QRELS)
def test_qrels_with_a_header(header, row, end, folder, capsys):
    rows = [row.replace("q", q).replace("d", d).replace("g", str(g)) for q, d, g in GRADES]
    (folder / "qrels").write_text(end.join([header, *rows, ""]), newline="")
    for qrels in (["qrels"], ["--qrels", "qrels"]):
        assert run(["eval", "plain.trec", *qrels, "-m", "nDCG@10 RR@10 AP", "--quiet"]) == 0
        assert capsys.readouterr().out.split()[1::2] == expected_measures(folder)


@pytest.mark.parametrize(
    "keys",
    [
        ("query-id", "corpus-id", "score"),
        ("query_id", "doc_id", "relevance"),
        ("qid", "docno", "label"),
        ("topic", "pid", "grade"),
    ],
)
@pytest.mark.parametrize("array", [False, True])
def test_json_qrels_are_an_argument_of_eval(keys, array, folder, capsys):
    query, passage, grade = keys
    records = [{grade: float(g), passage: d, query: q} for q, d, g in GRADES]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "qrels.jsonl").write_text(json.dumps(records) if array else lines)
    assert measured("plain.trec", "qrels.jsonl", capsys) == expected_measures(folder)


def test_json_runs_have_known_names(folder, capsys):
    records = [{"score": score, "doc_id": d, "query_id": q} for q, d, _, score in HITS]
    (folder / "run.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert measured("run.jsonl", "plain.qrels", capsys) == expected_measures(folder)


def test_json_runs_have_a_rank_of_any_known_spelling(folder, capsys):
    records = [{"Score": 1, "Rank": rank, "doc_id": d, "query_id": q} for q, d, rank, _ in HITS]
    (folder / "run.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    command = ["eval", "run.jsonl", "plain.qrels", "-m", "nDCG@10 RR@10 AP", "--set", "order=rank"]
    assert run([*command, "--quiet"]) == 0
    assert capsys.readouterr().out.split()[1::2] == expected_measures(folder)


@pytest.mark.parametrize("text", ["query-id\tcorpus-id\tscore\nQ0\tD0\t1\n", "Q0 0 D0 1\n"])
def test_the_hint_for_qrels_fits_their_columns(text, folder, capsys):
    (folder / "file").write_text(text)
    assert run(["eval", "--run", "file", "--qrels", "plain.qrels"]) == 1
    error = capsys.readouterr().err
    assert "exchange run and qrels" in error
    assert ("four columns" in error) == (text == "Q0 0 D0 1\n")


@pytest.mark.parametrize("record", [{"qid": "", "docid": "d"}, {"qid": "q", "docid": "a b"}])
def test_json_qrels_have_whole_ids(record, folder, capsys):
    (folder / "qrels.jsonl").write_text(json.dumps({**record, "relevance": 1}))
    assert run(["eval", "plain.trec", "qrels.jsonl"]) == 1
    assert "qrels.jsonl, line 1: found" in capsys.readouterr().err


@pytest.mark.parametrize("grade", ["1.0", "1.", "+1", "1.000"])
def test_a_whole_grade_is_read_with_its_decimal_point(grade, folder, capsys):
    (folder / "qrels").write_text(f"Q0 0 D0 {grade}\nQ0 0 D1 0.0\nQ1 0 D3 2.0\n")
    (folder / "plain.qrels").write_text("Q0 0 D0 1\nQ0 0 D1 0\nQ1 0 D3 2\n")
    assert measured("plain.trec", "qrels", capsys) == expected_measures(folder)


@pytest.mark.parametrize("grade", ["0.5", "1e3", "x", "1.0.0", "9" * 19, "nan"])
def test_other_grades_are_rejected_with_their_line(grade, folder, capsys):
    (folder / "qrels").write_text(f"Q0 0 D1 1\nQ0 0 D0 {grade}\n")
    assert run(["eval", "plain.trec", "qrels"]) == 1
    assert "qrels, line 2: found relevance" in capsys.readouterr().err
    (folder / "qrels").write_text("Q0 0 D1 1\nQ0 0 D0 " + "9" * 18 + "\n")
    assert run(["convert", "qrels", "out", "--kind", "qrels", "--to", "trec"]) == 0
    assert "9" * 18 in (folder / "out").read_text()
    (folder / "qrels.jsonl").write_text('{"qid": 1, "docid": 2, "relevance": 123456789012345678}')
    assert run(["convert", "qrels.jsonl", "json.out", "--kind", "qrels", "--to", "trec"]) == 0
    assert (folder / "json.out").read_text() == "1 0 2 123456789012345678\n"


def converted(folder, kind, to, name="table"):
    assert run(["convert", name, "out.jsonl", "--kind", kind, "--to", to]) == 0
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


TOPICS = [
    "qid\tquery\n101\tankle brace\n102\tvitamin d",
    "\ufeffQuery_ID\tText\r\n101\tankle brace\r\n102\tvitamin d\r\n",
    "\nquery\tquery-id\nankle brace\t101\nvitamin d\t102\n",
    "id\ttitle\tdescription\n101\tankle brace\tsome\n102\tvitamin d\tmore\n",
    '"id"\t"question"\n"101"\t"ankle brace"\n"102"\t"vitamin d"\n',
    "topic\tquery\n101\tankle brace\n102\tvitamin d\n",
]


@pytest.mark.parametrize("text", TOPICS)
def test_topics_with_a_header(text, folder, caplog):
    (folder / "table").write_text(text, newline="")
    text_by_id = {record["_id"]: record["text"] for record in converted(folder, "queries", "beir")}
    assert text_by_id == {"101": "ankle brace", "102": "vitamin d"}
    assert sum("is a header" in note for note in caplog.messages) == 1


@pytest.mark.parametrize(
    "text",
    [
        "question\tanswers\nwho\t['she', 'her']\nwhere\t['here']\n",
        "Answers\tQuestion\n['she', 'her']\twho\n['here']\twhere\n",
        "id\tquestion\tanswers\n0\twho\t['she', 'her']\n1\twhere\t['here']\n",
    ],
)
def test_questions_with_a_header(text, folder):
    (folder / "table").write_text(text)
    assert converted(folder, "queries", "qa") == [
        {"id": "0", "question": "who", "answers": ["she", "her"]},
        {"id": "1", "question": "where", "answers": ["here"]},
    ]


@pytest.mark.parametrize(
    "text",
    [
        "answers\tquestion\n['moon']\twhat rises\n['money']\twhere\n",
        "id\tanswers\n0\t['moon']\n1\t['money']\n",
    ],
)
def test_answers_under_a_header(text, folder, toy, capsys):
    (folder / "run").write_text("0 Q0 d4 1 2 t\n0 Q0 d1 2 1 t\n1 Q0 d3 1 2 t\n1 Q0 d2 2 1 t\n")
    (folder / "bare").write_text("what rises\t['moon']\nwhere\t['money']\n")
    (folder / "headed").write_text(text)
    values = []
    for name in ("bare", "headed"):
        command = ["eval", "run", "--answers", name, "--corpus", str(toy / "corpus.jsonl")]
        assert run([*command, "-m", "RR@10", "--quiet"]) == 0
        values.append(capsys.readouterr().out)
    assert values == ["RR@10\t0.7500\n"] * 2


def test_a_header_of_topics_is_not_searched(folder, toy):
    pytest.importorskip("bm25s")
    corpus = str(toy / "corpus.jsonl")
    assert run(["index", "--type", "bm25", "--corpus", corpus, "--output", "bm25"]) == 0
    (folder / "bare.tsv").write_text("1\tthe moon\n2\tquery of a river\n")
    (folder / "headed.tsv").write_text("query\tqid\nthe moon\t1\nquery of a river\t2\n")
    for name in ("bare", "headed"):
        command = ["search", "--index", "bm25", "--topics", f"{name}.tsv"]
        assert run([*command, "--output", f"{name}.trec"]) == 0
    assert (folder / "headed.trec").read_bytes() == (folder / "bare.trec").read_bytes()


CORPORA = [
    "docid\ttext\n1\tone\n2\ttwo\n",
    "DocNo\tTitle\tBody\r\n1\t\tone\r\n2\t\ttwo\r\n",
    "text\tpid\none\t1\ntwo\t2\n",
    "url\tpassage_id\tcontents\nu\t1\tone\nv\t2\ttwo\n",
    '"id"\t"text"\n"1"\t"one"\n"2"\t"two"\n',
    '\ufeffID\tTEXT\tTITLE\n1\t"one"\t\n2\ttwo\t\n',
]


@pytest.mark.parametrize("text", CORPORA)
def test_corpora_with_a_header(text, folder):
    (folder / "table").write_text(text, newline="")
    text_by_id = {record["_id"]: record["text"] for record in converted(folder, "corpus", "beir")}
    assert text_by_id == {"1": "one", "2": "two"}


def test_a_quoted_passage_may_hold_an_empty_line(folder):
    (folder / "table").write_text('\nid\ttext\ttitle\n1\t"one\n\nmore"\thead\n2\ttwo\t\n')
    records = converted(folder, "corpus", "beir")
    assert [record["text"] for record in records] == ["one\n\nmore", "two"]


@pytest.mark.parametrize("kind", ["queries", "corpus"])
def test_a_first_line_that_only_resembles_a_header_is_read_and_reported(kind, folder, caplog):
    (folder / "table").write_text("doc_id\tthe remark\nqid\tanother\n")
    assert [record["_id"] for record in converted(folder, kind, "beir")] == ["doc_id", "qid"]
    assert any("the remark" in warning for warning in warnings_of(caplog))


def test_names_of_one_meaning_are_no_header_and_reported(folder, caplog):
    (folder / "table").write_text("query\ttext\n1\tone\n")
    assert [record["_id"] for record in converted(folder, "queries", "beir")] == ["query", "1"]
    assert any("query, text" in warning for warning in warnings_of(caplog))


@pytest.mark.parametrize("kind", ["queries", "corpus"])
def test_names_below_the_first_line_are_records(kind, folder, caplog):
    (folder / "table").write_text("1\tone\nid\ttext\n")
    records = converted(folder, kind, "beir")
    assert [(record["_id"], record["text"]) for record in records] == [("1", "one"), ("id", "text")]
    assert not any("header" in note for note in caplog.messages)


@pytest.mark.parametrize(
    ("kind", "to", "text"),
    [
        ("run", "jsonl", "docid qid score\nd1 q1 2.5\n"),
        ("qrels", "trec", "docid qid relevance\nd1 q1 2\n"),
        ("qrels", "trec", '{"docid": "d1", "qid": "q1", "relevance": 2}\n'),
        ("run", "trec", '{"doc_id": "d1", "query_id": "q1", "score": 2}\n'),
        ("queries", "beir", "qid\tquery\n1\twho\n"),
        ("queries", "beir", "question\tanswers\nwho\t['she']\n"),
        ("corpus", "beir", "text\tdocno\none\t1\n"),
        ("training", "tevatron", "positive\tquery\na\twho\n"),
        ("training", "tevatron", "question\tanswer\nwho\tshe\n"),
        ("training", "tevatron", "answer,question\nshe,who\n"),
        ("training", "tevatron-ids", "qid\tneg_id\tpos_id\nq\ta\tb\n"),
    ],
)
def test_a_header_decides_what_a_file_holds(kind, to, text, folder, caplog):
    (folder / "file").write_text(text)
    assert run(["convert", "file", "out", "--to", to]) == 0
    assert f"file: {kind}" in caplog.messages
