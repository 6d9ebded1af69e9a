"""Columns of training data go by their names; what is written is what is counted."""

import gzip
import json
from pathlib import Path

import pytest
from datasets import Dataset

from denserk.commands.app import run
from tests.support.console import warnings_of


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sides(passages):
    return [passage["docid"] or passage["text"] for passage in passages]


def examples(source, *options):
    """The examples of a source: query, positives, negatives, by `denserk convert`."""
    command = ["convert", str(source), "examples.jsonl", "--kind", "training", "--overwrite"]
    assert run([*command, *options]) == 0
    records = [json.loads(line) for line in Path("examples.jsonl").read_text().splitlines()]
    return [
        (record["query"], sides(record["positive_passages"]), sides(record["negative_passages"]))
        for record in records
    ]


def texts(source):
    return examples(source, "--to", "tevatron")


PAIRS: list[tuple[str, list[str], list[str]]] = [
    ("who wrote hamlet", ["Shakespeare, of course"], []),
    ("capital", ["Paris, France"], []),
]
KEYS = [
    ("positive", "anchor"),
    ("answer", "query"),
    ("Answer", "Question"),
    ("positive", "title"),  # one known name is enough
    ("answer", "text"),
    ("anchor", "positive"),
    ("query", "answer"),
]


@pytest.mark.parametrize(("first_name", "second_name"), KEYS)
def test_known_names_win_over_the_order(first_name, second_name, folder):
    query_is_first = first_name in ("anchor", "query")
    rows = []
    for query, positives, _ in PAIRS:
        values = (query, positives[0]) if query_is_first else (positives[0], query)
        rows.append({first_name: values[0], second_name: values[1]})
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "t.json").write_text(json.dumps(rows))
    header = f"{first_name}\t{second_name}\n"
    columns = "".join("\t".join(row.values()) + "\n" for row in rows)
    (folder / "t.tsv").write_text(header + columns)
    (folder / "t.tsv.gz").write_bytes(gzip.compress((header + columns).encode()))
    (folder / "crlf.tsv").write_text(
        "\ufeff" + (header + columns).replace("\n", "\r\n"), newline=""
    )
    Dataset.from_list(rows).to_parquet(folder / "t.parquet")
    Dataset.from_list(rows).save_to_disk(folder / "saved")
    Dataset.from_list(rows).to_csv(folder / "t.csv", index=False)
    names = ["t.jsonl", "t.json", "t.parquet", "saved"]
    if "t" not in (first_name[:1], second_name[:1]):  # tables need both names, or --from
        names += ["t.tsv", "t.tsv.gz", "crlf.tsv", "t.csv"]
    for name in names:
        assert texts(name) == PAIRS
    for name in ("t.tsv", "t.csv"):
        assert examples(name, "--to", "tevatron", "--from", "st-triplet") == PAIRS


def test_the_order_that_was_understood_is_said(folder, caplog):
    rows = {"t1": ["positive", "anchor"], "t2": ["text1", "text2"], "t3": ["anchor", "positive"]}
    for name, (first_name, second_name) in rows.items():
        (folder / name).write_text(json.dumps({first_name: "a", second_name: "b"}))
        command = ["convert", name, f"{name}.out", "--kind", "training", "--to", "flag"]
        assert run([*command, "--from", "st-triplet"]) == 0
    notes_of_names = [note for note in caplog.messages if note.startswith("t1, line 1")]
    assert len(notes_of_names) == 1
    assert "query: anchor" in notes_of_names[0]
    by_position = [warning for warning in warnings_of(caplog) if warning.startswith("t2, line 1")]
    assert len(by_position) == 1
    assert "query: text1" in by_position[0]
    assert not any(note.startswith("t3, line 1") for note in caplog.messages)


def test_keys_of_a_later_record_may_stand_in_another_order(folder):
    (folder / "t").write_text(
        '{"text1": "q", "text2": "a"}\n{"text2": "b", "text1": "r"}\n'
        '{"positive": "c", "anchor": "s"}\n'
    )
    found = examples("t", "--to", "tevatron", "--from", "st-triplet")
    assert found == [("q", ["a"], []), ("r", ["b"], []), ("s", ["c"], [])]


def test_names_of_triplets_in_any_order(folder):
    expected = [("who runs", ["a cat"], ["a dog", "a boat"])]
    for header, row in [
        ("negative_1\tanchor\tnegative_2\tpositive", "a dog\twho runs\ta boat\ta cat"),
        ("positive\tnegative\tquery\tnegative", "a cat\ta dog\twho runs\ta boat"),
        ("query\tpositive\tnegative\tmore", "who runs\ta cat\ta dog\ta boat"),
    ]:
        (folder / "t").write_text(f"{header}\n{row}\n")
        assert texts("t") == expected


def test_ids_beside_texts_are_no_texts(folder):
    (folder / "t").write_text(
        '{"query_id": "7", "query": "who", "positive": "a", "negative": "b"}\n'
        '{"query_id": "8", "query": "why", "positive": "c", "negative": "d"}\n'
    )
    assert texts("t") == [("who", ["a"], ["b"]), ("why", ["c"], ["d"])]
    assert '"query_id":"7"' in (folder / "examples.jsonl").read_text()


def test_lists_of_passages_by_name(folder):
    (folder / "t").write_text('{"negatives": ["b", "c"], "query": "q", "positives": ["a"]}')
    assert texts("t") == [("q", ["a"], ["b", "c"])]


@pytest.mark.parametrize(
    "contexts",
    [
        {"context": "the moon rises"},
        {"contexts": ["the moon rises", "it sets"], "ground_truth": "the moon"},
    ],
)
def test_contexts_beside_an_answer_are_no_negatives(contexts, folder, caplog):
    (folder / "t").write_text(json.dumps({"question": "q", **contexts, "answer": "a"}))
    assert texts("t") == [("q", ["a"], [])]
    assert all(f"not used: {name}" in caplog.text for name in contexts)


def test_a_context_alone_is_the_positive(folder):
    (folder / "t").write_text('{"question": "q", "context": "the moon rises"}')
    [(query, positives, negatives)] = examples("t", "--to", "tevatron", "--from", "st-triplet")
    assert (query, positives, negatives) == ("q", ["the moon rises"], [])


@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_columns_between_semicolons(start, folder):
    rows = 'anchor;positive;negative\r\n"q; r";a, b;"c ""d"""\r\n'
    (folder / "t.csv").write_text(start + rows)
    assert texts("t.csv") == [("q; r", ["a, b"], ['c "d"'])]


LABELLED = [("q", ["a"], ["b"]), ("r", ["c"], [])]


def test_labelled_passages_under_a_header(folder):
    rows = [("1", "a", "q"), ("0", "b", "q"), ("1", "c", "r")]
    for separator in "\t,":
        lines = [separator.join(row) for row in [("label", "passage", "query"), *rows]]
        (folder / "t").write_text("\n".join(lines) + "\n")
        assert texts("t") == LABELLED


TRIPLES = [
    "qid\tpositive_id\tnegative_id\n1\t20\t30\n1\t20\t31\n2\t40\t50\n",
    "Query_ID\tPos_PID\tNeg_PID\r\n1\t20\t30\r\n1\t20\t31\r\n2\t40\t50\r\n",
    "neg_id\tqid\tpos_id\n30\t1\t20\n31\t1\t20\n50\t2\t40\n",
    "query\tpositive\tnegative\n1\t20\t30\n1\t20\t31\n2\t40\t50\n",
    '"qid"\t"pos"\t"neg"\n"1"\t"20"\t"30"\n"1"\t"20"\t"31"\n"2"\t"40"\t"50"\n',
    '{"negative_id": 30, "query_id": 1, "positive_id": 20}\n'
    '{"positive_id": 20, "query_id": 1, "negative_id": 31}\n'
    '{"negative_id": 50, "query_id": 2, "positive_id": 40}\n',
]


@pytest.mark.parametrize("text", TRIPLES)
def test_triples_of_ids_with_a_header(text, folder):
    (folder / "t").write_text(text, newline="")
    for options in ([], ["--from", "triples"]):
        assert run(["convert", "t", "out", "--kind", "training", "--to", "triples", *options]) == 0
        assert (folder / "out").read_text() == "1\t20\t30\n1\t20\t31\n2\t40\t50\n"
        (folder / "out").unlink()


def test_lists_of_negatives_with_a_header(folder):
    (folder / "t").write_text("qid\tnegatives\n1\t20,30\n2\t40\n")
    assert run(["convert", "t", "out", "--kind", "training", "--to", "negatives"]) == 0
    assert (folder / "out").read_text() == "1\t20,30\n2\t40\n"


def test_text_triples_with_a_header(folder):
    (folder / "t").write_text("negative\tquery\tpositive\na dog\twho runs\ta cat\n")
    assert examples("t", "--to", "tevatron", "--from", "text-triples") == [
        ("who runs", ["a cat"], ["a dog"])
    ]


WITHOUT_NEGATIVES = [
    {"query": "who wrote hamlet", "pos": ["Shakespeare, of course"], "neg": []},
    {"query": "capital", "pos": ["Paris, France"], "neg": []},
]
WITH_NEGATIVES = {"query": "who runs", "pos": ["a cat"], "neg": ["a dog"]}


def write(name, rows):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_examples_without_negatives_are_written_as_pairs(folder, caplog):
    write("t", WITHOUT_NEGATIVES)
    assert run(["convert", "t", "out.jsonl", "--to", "st-triplet"]) == 0
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [list(line) for line in lines] == [["anchor", "positive"]] * 2
    assert "out.jsonl: 2 examples in format st-triplet" in caplog.messages
    assert texts("out.jsonl") == PAIRS


def test_pairs_among_triplets_are_read_as_they_were_and_reported(folder, caplog):
    write("t", [*WITHOUT_NEGATIVES, WITH_NEGATIVES])
    assert run(["convert", "t", "out.jsonl", "--to", "st-triplet"]) == 0
    assert texts("out.jsonl") == [*PAIRS, ("who runs", ["a cat"], ["a dog"])]
    assert any(warning.startswith("2 of 3 examples") for warning in warnings_of(caplog))


@pytest.mark.parametrize("training_format", ["text-triples", "triples", "st-triplet"])
def test_a_conversion_that_would_write_nothing_is_an_error(training_format, folder, capsys):
    write("t", WITHOUT_NEGATIVES)
    if training_format == "triples":
        rows = [{"query_id": "1", "positive_document_ids": ["2"], "negative_document_ids": []}]
        write("t", rows)
    if training_format == "st-triplet":
        write("t", [{"query": "q", "pos": [], "neg": ["a"]}])
    assert run(["convert", "t", "out", "--to", training_format]) == 1
    assert not (folder / "out").exists()
    assert "--to" not in capsys.readouterr().out


def test_examples_that_a_format_cannot_hold_are_not_counted(folder, caplog):
    write("t", [*WITHOUT_NEGATIVES, WITH_NEGATIVES])
    assert run(["convert", "t", "out.tsv", "--to", "text-triples"]) == 0
    assert (folder / "out.tsv").read_text() == "who runs\ta cat\ta dog\n"
    assert "out.tsv: 1 examples in format text-triples" in caplog.messages
    assert any("2 of 3 examples" in warning for warning in warnings_of(caplog))


def test_hits_that_a_format_cuts_are_reported(folder, caplog):
    (folder / "run").write_text("".join(f"q Q0 d{n} {n} {2000 - n} t\n" for n in range(1, 1004)))
    assert run(["convert", "run", "out", "--kind", "run", "--to", "msmarco"]) == 0
    assert len((folder / "out").read_text().splitlines()) == 1000
    assert "out: 1,000 lines in format msmarco" in caplog.messages
    assert any("3 hits" in warning for warning in warnings_of(caplog))


def test_what_columns_leave_out_is_reported(folder, caplog):
    write("q", [{"_id": "a", "text": "who", "answers": ["x", "y"], "source": "s"}])
    write("c", [{"_id": "a", "text": "who", "title": "", "metadata": {}}])
    for source, kind, to, lost in [
        ("q", "queries", "tsv", "source: 1, answers: 2"),
        ("q", "queries", "dpr", "source: 1, ids, which become positions: 1"),
        ("c", "corpus", "marco", "metadata: 1"),
    ]:
        assert run(["convert", source, f"{to}.out", "--kind", kind, "--to", to]) == 0
        assert caplog.messages[-2].endswith(f": {lost}")


SENTENCES = [("1.0", "a cat", "a big cat"), ("0.25", "the moon", "a boat"), ("0.5", "a dog", "a")]


def similarity(name, tiny, capsys):
    capsys.readouterr()
    command = ["analyze", "sentence-similarity", "--model", str(tiny()), "--data", name]
    assert run([*command, "--representation", "mean", "--device", "cpu", "--quiet"]) == 0
    return capsys.readouterr().out.replace(name, "")


@pytest.mark.parametrize(
    "names", [("score", "text_a", "text_b"), ("Label", "Sentence A", "SentenceB")]
)
def test_pairs_of_sentences_by_other_names(names, folder, tiny, capsys):
    (folder / "plain").write_text("".join(f"{a}\t{b}\t{score}\n" for score, a, b in SENTENCES))
    rows = [names, *SENTENCES]
    (folder / "named").write_text("".join("\t".join(row) + "\n" for row in rows))
    (folder / "commas").write_text("".join(",".join(row) + "\n" for row in rows))
    expected = similarity("plain", tiny, capsys)
    assert similarity("named", tiny, capsys) == expected
    assert similarity("commas", tiny, capsys) == expected
