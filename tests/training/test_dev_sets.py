"""What a run validates on."""

import orjson
import pytest

from denserk.config.encoding import TextSettings
from denserk.data.tokenization import TextTokenizer
from denserk.errors import InputError
from denserk.training.finetune import prepare_dev
from tests.conftest import PASSAGES, VOCABULARY
from tests.data.conftest import inline
from tests.tiny_models import tiny_tokenizer
from tests.training.finetuning import run_of


@pytest.fixture(scope="module")
def tokenizers():
    made = TextTokenizer(tiny_tokenizer("bert", VOCABULARY), TextSettings())
    return made, made


def sets(tmp_path, tokenizers, **options):
    run = run_of(tmp_path / "out", tmp_path / "model", "train.jsonl", **options)
    return prepare_dev(run, tmp_path / "out", tokenizers)


def written(path, examples):
    path.write_bytes(b"".join(orjson.dumps(example) + b"\n" for example in examples))
    return str(path)


def collection(toy, qrels="qrels.txt"):
    return {
        "dev_corpus": str(toy / "corpus.jsonl"),
        "dev_topics": str(toy / "queries.tsv"),
        "dev_qrels": str(toy / qrels),
    }


def test_nothing_asked_is_nothing_measured(tmp_path, tokenizers):
    assert sets(tmp_path, tokenizers) == []


def test_groups_are_the_first_positive_and_the_top_negatives(tmp_path, tokenizers):
    examples = [inline(number, 2, 3) for number in range(4)]
    (dev,) = sets(tmp_path, tokenizers, dev_data=written(tmp_path / "dev.jsonl", examples))
    assert dev.groups is not None
    tokenizer = tiny_tokenizer("bert", VOCABULARY)

    def text(row):
        return tokenizer.decode(list(dev.passages[row]), skip_special_tokens=True)

    for example, group, relevant in zip(examples, dev.groups.tolist(), dev.relevant, strict=True):
        positives, negatives = example["positive_passages"], example["negative_passages"]
        expected = [positives[0], *negatives[:2]]
        assert [text(row) for row in group] == [each["text"] for each in expected]
        assert [text(row) for row in relevant] == [each["text"] for each in positives]
    assert (len(dev.queries), len(dev.passages)) == (4, 20)


def test_a_passage_named_twice_is_searched_once(tmp_path, tokenizers):
    one, other = inline(1, 1, 3), inline(2, 1, 3)
    other["negative_passages"][0] = one["positive_passages"][0]
    (dev,) = sets(tmp_path, tokenizers, dev_data=written(tmp_path / "dev.jsonl", [one, other]))
    assert dev.groups is not None
    assert len(dev.passages) == 7
    assert dev.groups[1, 1] == dev.groups[0, 0] == dev.relevant[0][0]


def test_a_collection_is_sorted_by_descending_id(toy, tmp_path, tokenizers):
    (dev,) = sets(tmp_path, tokenizers, **collection(toy))
    docids = sorted(PASSAGES, reverse=True)
    assert docids.index("d10") > docids.index("d2")
    assert len(dev.passages) == len(docids)
    found = [{docids[row] for row in rows} for rows in dev.relevant]
    assert found == [{"d3"}, {"d1", "d5"}, {"d4"}]
    assert dev.groups is None


def test_a_collection_comes_last(toy, tmp_path, tokenizers):
    data = written(tmp_path / "dev.jsonl", [inline(1, 1, 3)])
    first, last = sets(tmp_path, tokenizers, dev_data=data, **collection(toy))
    assert first.groups is not None
    assert last.groups is None


def test_only_judged_queries_with_a_passage_count(toy, tmp_path, tokenizers):
    (toy / "some.txt").write_text("q1 0 d3 1\nq2 0 absent 1\nq3 0 d4 0\n")
    (dev,) = sets(tmp_path, tokenizers, **collection(toy, "some.txt"))
    assert len(dev.queries) == len(dev.relevant) == 1


def test_judgements_of_other_things_are_refused(toy, tmp_path, tokenizers):
    (toy / "other.txt").write_text("x1 0 d3 1\n")
    with pytest.raises(InputError, match="no relevance judgment that joins a query"):
        sets(tmp_path, tokenizers, **collection(toy, "other.txt"))
