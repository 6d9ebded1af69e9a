import json
from math import sqrt

import numpy as np
import pytest

from denserk.analysis.encoders import SIMILARITY_HEADER, sentence_similarity
from denserk.config.analysis import SentenceSimilaritySettings
from denserk.errors import InputError
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage

PAIRS = [
    ("a cat sleeps", "the dog sleeps", 4.0),
    ("the moon rises", "red boat on water", 0.5),
    ("a river", "a river", 5.0),
    ("money in the bank", "the sun falls", 0.5),
    ("old house", "a new house", 2.0),
]
TRIPLETS = [
    ("the river runs", "a river runs south", "money"),
    ("cat", "the big dog eats fish", "cat"),
    ("moon", "the moon and star", "red"),
]


def write_pairs(path, pairs=PAIRS):
    path.write_text("".join(f"{a}\t{b}\t{label}\n" for a, b, label in pairs))
    return str(path)


def write_triplets(path):
    names = ("anchor", "positive", "negative")
    rows = (dict(zip(names, texts, strict=True)) for texts in TRIPLETS)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def vectors_of(folder, texts, **representation):
    encoder = TextEncoder.load(str(folder), representation)
    return encoder.encode_passages([Passage("", text) for text in texts]).astype(np.float64)


def ranks(values):
    return [
        sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values
    ]


def correlation(first, second):
    one, other = (np.array(side) - np.mean(side) for side in (first, second))
    return float(one @ other / sqrt((one @ one) * (other @ other)))


def measured(model, data, **more):
    settings = SentenceSimilaritySettings(model=(str(model),), data=data)
    (found,) = sentence_similarity(settings, **more)
    return found


@pytest.mark.parametrize("representation", ["cls", "mean"])
def test_pairs(tiny, tmp_path, representation):
    data = write_pairs(tmp_path / "pairs.tsv")
    found = measured(tiny(), data, representation={"representation": representation})
    cosines = []
    for a, b, _ in PAIRS:
        one, other = vectors_of(tiny(), (a, b), representation=representation)
        cosines.append(round(one @ other / sqrt((one @ one) * (other @ other)), 5))
    expected = correlation(ranks(cosines), ranks([label for _, _, label in PAIRS]))
    assert found.value == pytest.approx(expected)
    assert found.row()[1:5] == [data, "pairs", "5", "spearman"]


def test_triplets(tiny, tmp_path):
    found = measured(tiny(), write_triplets(tmp_path / "triplets.jsonl"))
    right = 0
    for texts in TRIPLETS:
        anchor, positive, negative = vectors_of(tiny(), texts)
        right += np.linalg.norm(anchor - positive) < np.linalg.norm(anchor - negative)
    assert found.value == right / 3
    assert found.value < 1  # the second one is wrong for any model
    assert found.row()[2:5] == ["triplets", "3", "accuracy"]


def test_several_vectors_a_passage_are_measured_by_the_query_s(tiny, tmp_path):
    data = write_pairs(tmp_path / "pairs.tsv")
    several = {"representation": "mlr", "reduction": "multi-vector", "layers": [2, 1]}
    assert measured(tiny(), data, representation=several).value == measured(tiny(), data).value


def test_a_row_a_model_and_a_table(tiny, tmp_path):
    data, out = write_pairs(tmp_path / "pairs.tsv"), tmp_path / "table.csv"
    models = (str(tiny()), str(tiny(seed=8)))
    found = sentence_similarity(
        SentenceSimilaritySettings(model=models, data=data, output=str(out))
    )
    assert [each.model for each in found] == list(models)
    assert out.read_text().splitlines() == [
        ",".join(SIMILARITY_HEADER),
        *(",".join(r.row()) for r in found),
    ]


def test_labels_that_are_all_the_same(tiny, tmp_path):
    data = write_pairs(tmp_path / "pairs.tsv", [("a cat", "a dog", 3.0), ("sun", "moon", 3.0)])
    with pytest.raises(InputError, match="found only the label 3; expected labels that differ"):
        measured(tiny(), data)
