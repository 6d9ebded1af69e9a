import json
from typing import Any

import pytest
from datasets import Dataset, DatasetDict, load_dataset

from denserk.commands.app import run
from denserk.errors import InputError, UsageError
from denserk.io.corpus import read_passages
from denserk.io.pretraining_text import read_documents
from denserk.io.qrels import read_qrels_map
from denserk.io.topics import read_queries
from denserk.io.training import read_sentences, read_training
from denserk.records import Passage, Query
from tests.io.test_training import summary
from tests.support.toy import PASSAGES, QRELS, QUERIES

CORPUS = [{"_id": docid, "title": title, "text": text} for docid, (title, text) in PASSAGES.items()]
TOPICS = [{"_id": qid, "text": text} for qid, text in QUERIES.items()]


def judged_rows():
    rows = []
    for qid, grades in QRELS.items():
        for docid, grade in grades.items():
            rows.append({"query-id": qid, "corpus-id": docid, "score": float(grade)})
    return rows


JUDGED = judged_rows()


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_list(rows).to_parquet(path)
    return str(path)


def write_repository(folder):
    """Write a dataset of the hub: three configs, of which one has two splits."""
    write(folder / "corpus" / "corpus-0.parquet", CORPUS)
    write(folder / "queries" / "queries-0.parquet", TOPICS)
    write(folder / "default" / "test-0.parquet", JUDGED)
    write(folder / "default" / "dev-0.parquet", JUDGED[:1])
    splits_by_config = {"corpus": ["corpus"], "queries": ["queries"], "default": ["test", "dev"]}
    configs = []
    for config, splits in splits_by_config.items():
        files = [{"split": split, "path": f"{config}/{split}-*"} for split in splits]
        configs.append({"config_name": config, "data_files": files})
    card = json.dumps({"configs": configs})
    (folder / "README.md").write_text(f"---\n{card}\n---\n")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    write_repository(tmp_path / "repo")
    files = tmp_path / "files"
    write(files / "corpus" / "0.parquet", CORPUS[:4])
    write(files / "corpus" / "1.parquet", CORPUS[4:])
    write(files / "queries.parquet", TOPICS)
    write(files / "qrels" / "test.parquet", JUDGED)
    write(files / "qrels" / "dev.parquet", JUDGED)

    def load(name, *arguments, **options):
        if name == "org/script" and not options.pop("revision", None):
            raise RuntimeError("Dataset scripts are no longer supported")
        if name.startswith("org/"):
            name = "repo"
        return load_dataset(name, *arguments, **options)

    monkeypatch.setattr("datasets.load_dataset", load)
    return tmp_path


def test_collections_are_read_by_name_and_from_parquet(hub):
    for name, qrels in {
        "hf:org/toy": "hf:org/toy/test",
        "hf:org/script": "hf:org/script:default/test",
        "files": "files/qrels/test.parquet",
    }.items():
        expected = [Passage(docid, text, title) for docid, (title, text) in PASSAGES.items()]
        assert list(read_passages(name)) == expected
        assert [document.docid for document in read_documents(name)] == list(PASSAGES)
        assert list(read_queries(name)) == [Query(qid, text) for qid, text in QUERIES.items()]
        assert read_qrels_map(qrels) == QRELS
        with pytest.raises(UsageError, match=r"several splits, .* \(there: (test, |dev, )"):
            read_qrels_map(name)


def test_names_that_lead_nowhere(hub):
    for name, message in {
        "hf:org/toy:default/train": "no split train ",
        "hf:org/toy:none": r"'none' not found. Available: \['corpus', 'queries'",
        "hf:other/name:pair": "OfflineModeIsEnabled",
        "org/toy": "org/toy: no such file",
    }.items():
        for read in (read_training, read_passages, read_queries, read_qrels_map):
            with pytest.raises((UsageError, InputError), match=message):
                list(read(name))


LABELLED = [("q", "a", 1), ("q", "b", 0), ("r", "c", 1), ("q", "d", 0)]
TRAINING = [  # as Tevatron and sentence-transformers publish it
    ([{"query_id": 7, "query": "q", "positive_passages": [{"docid": 1}]}], [("7", "q", ["1"], [])]),
    ([{"query_text": "q", "negative_document_ids": ["2", "3"]}], [("0", "q", [], ["2", "3"])]),
    ([{"query_id": "7", "positive_id": "1", "negative_id": "2"}], [("7", "", ["1"], ["2"])]),
    ([{"query": 7, "positive": 1, "negative": 2}], [("7", "", ["1"], ["2"])]),
    ([{"qid": 7, "pos": [1], "neg": {"a": [2], "b": [2]}}], [("7", "", ["1"], ["2"])]),
    ([{"query": "q", "positive": "a", "negative_1": "b"}], [("0", "q", ["a"], ["b"])]),
    ([{"question": "q", "answer": "a"}], [("0", "q", ["a"], [])]),
    (
        [{"query": query, "passage": text, "label": label} for query, text, label in LABELLED],
        [("0", "q", ["a"], ["b"]), ("1", "r", ["c"], []), ("2", "q", [], ["d"])],
    ),
]


@pytest.mark.parametrize(("rows", "expected"), TRAINING)
def test_columns_of_training_data_are_detected(rows, expected, tmp_path):
    data = Dataset.from_list(rows)
    data.to_parquet(tmp_path / "rows.parquet")
    data.save_to_disk(tmp_path / "saved")
    DatasetDict(train=data, test=data).save_to_disk(tmp_path / "splits")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("rows.parquet", "saved", "splits", "rows.jsonl"):
        assert [summary(example) for example in read_training(tmp_path / name)] == expected


def test_unknown_columns_are_listed_with_the_known_ones(tmp_path):
    source = write(tmp_path / "t.parquet", [{"a": 1, "b": "x"}])
    readers: dict[Any, str] = {
        read_queries: "_id with text or query_id with query|",
        read_qrels_map: "query-id|query_id|qid with corpus-id",
        read_training: "query with positive_passages or query",
        read_sentences: "pairs (sentence1, sentence2, label)",
    }
    for read, known_columns in readers.items():
        with pytest.raises(InputError) as caught:
            list(read(source))
        assert f"a, b; expected {known_columns}" in caught.value.message
    with pytest.raises(InputError, match=r'no field that is clearly the text: a \(1\), b \("x"\)'):
        list(read_passages(source))
    write(tmp_path / "t.parquet", [JUDGED[0] | {"score": 0.5}])
    with pytest.raises(InputError, match=r"line 1: found relevance '0.5'; expected an integer"):
        read_qrels_map(source)
    (tmp_path / "t.parquet").write_bytes(b"PAR1 something else")
    with pytest.raises(InputError, match="no dataset that can be read"):
        read_qrels_map(source)


def test_commands_take_names_and_parquet(hub, tiny):
    model = ("--model", tiny(), "--representation", "cls", "--device", "cpu")
    triplets = [{"anchor": q, "positive": "cat", "negative": "boat"} for q in QUERIES.values()]
    train = write(hub / "data" / "train-00000-of-00001.parquet", triplets)
    write(hub / "p.parquet", [{"sentence1": "a", "sentence2": "b", "score": 0.5}])
    assert next(read_sentences("p.parquet")).label == 0.5
    lines = [
        ("encode", *model, "--corpus", "hf:org/toy", "--output", "v"),
        ("index", "--input", "v", "--output", "i"),
        ("search", "--index", "i", *model[:2], "--topics", "hf:org/toy", "--output", "run.trec"),
        ("eval", "run.trec", "hf:org/toy:default/test"),
        ("finetune", *model, "--train-data", "hf:data", "--output", "m", "--batch-size", "2"),
        ("convert", train, "t", "--to", "text-triples"),
    ]
    for line in lines:
        assert run([*map(str, line)]) == 0
