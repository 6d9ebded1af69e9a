from typing import Any

import pytest

from denserk.config.analysis import SentenceSimilaritySettings
from denserk.config.training import Objective
from denserk.errors import UsageError
from denserk.tasks.analyze.sentence_similarity import sentence_similarity
from denserk.tasks.finetune import finetune
from tests.support.finetuning import AGG, log_of, run_of, write_examples
from tests.support.training_examples import words

PAIRS: dict[str, Any] = {"objective": Objective.COSINE_MSE, "label_scale": 5.0}
TRIPLETS: dict[str, Any] = {"objective": Objective.TRIPLET}
SMALL: dict[str, Any] = {"group_size": 8, "batch_size": 4, "lr": 0.01, "save_steps": 4}


@pytest.fixture
def data(tmp_path):
    """Ten pairs, equal ones and random ones; ten triplets, whose positives share words."""
    pairs = ["sentence1\tsentence2\tscore\n"]
    triplets = []
    for number in range(1, 11):
        if number % 2 == 1:
            pairs.append(f"{words(number, 4)}\t{words(number, 4)}\t5\n")
        else:
            pairs.append(f"{words(number, 4)}\t{words(50 - number, 4)}\t0\n")
        anchor = f"{words(number, 2)} the"
        triplets.append(f"{anchor}\t{words(number, 2)}\t{words(39 - number, 2)}\n")
    (tmp_path / "pairs.tsv").write_text("".join(pairs))
    (tmp_path / "triplets.tsv").write_text("".join(triplets))
    return {
        "cosine-mse": str(tmp_path / "pairs.tsv"),
        "triplet": str(tmp_path / "triplets.tsv"),
    }


def tune(output, model, train, **options):
    return finetune(run_of(output, model, train, **{**SMALL, **options}))


@pytest.mark.parametrize(
    ("options", "representation", "measure"),
    [(PAIRS, {"representation": "cls"}, "spearman"), (TRIPLETS, AGG, "accuracy")],
    ids=["pairs", "triplets"],
)
def test_a_run_learns_validates_and_saves(tiny, data, tmp_path, options, representation, measure):
    objective = options["objective"]
    file = data[objective]
    validation = {"dev_data": file, "eval_steps": 20}
    output = tmp_path / "m"
    result = tune(output, tiny(), file, **options, **representation, **validation, max_steps=60)
    assert result.steps == 60
    assert result.best is None
    log = log_of(output)
    validations = [entry for entry in log if "eval_dev-loss" in entry]
    assert [entry["step"] for entry in validations] == [20, 40, 60]
    first_validation, _, last_validation = validations
    assert last_validation["eval_dev-loss"] < 0.8 * first_validation["eval_dev-loss"]
    assert any(f"loss_{objective}" in entry for entry in log)
    settings = SentenceSimilaritySettings(model=(str(output),), data=file)
    [similarity] = sentence_similarity(settings)
    assert similarity["measure"] == measure
    assert similarity["value"] == pytest.approx(last_validation[f"eval_{measure}"], abs=0.1)
    assert similarity["value"] > 0.8


def test_separate_encoders_are_rejected(tiny, data, tmp_path):
    train = write_examples(tmp_path / "train.jsonl", range(8))
    finetune(run_of(tmp_path / "untied", tiny(), train, untie=True, max_steps=1))
    with pytest.raises(UsageError, match="has separate encoders for queries and passages"):
        tune(tmp_path / "m", tmp_path / "untied", data["cosine-mse"], **PAIRS)
