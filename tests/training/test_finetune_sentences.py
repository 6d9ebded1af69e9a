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
    pairs, triplets = tmp_path / "pairs.tsv", tmp_path / "triplets.tsv"
    other = {n: words(n if n % 2 else 50 - n, 4) for n in range(1, 11)}
    rows = [f"{words(n, 4)}\t{other[n]}\t{5 * (n % 2)}\n" for n in other]
    pairs.write_text("".join(["sentence1\tsentence2\tscore\n", *rows]))
    rows = [f"{words(n, 2)} the\t{words(n, 2)}\t{words(39 - n, 2)}\n" for n in other]
    triplets.write_text("".join(rows))
    return {"cosine-mse": str(pairs), "triplet": str(triplets)}


def tune(output, model, train, **options):
    return finetune(run_of(output, model, train, **{**SMALL, **options}))


@pytest.mark.parametrize(
    ("objective", "measure", "representation"),
    [(PAIRS, "spearman", "cls"), (TRIPLETS, "accuracy", "agg")],
)
def test_a_run_learns_validates_and_saves(tiny, data, tmp_path, objective, measure, representation):
    file, output = data[objective["objective"]], tmp_path / "m"
    made = AGG if representation == "agg" else {"representation": representation}
    made = made | {"dev_data": file, "eval_steps": 20, "max_steps": 60}
    result = tune(output, tiny(), file, **objective, **made)
    assert (result.steps, result.first_step, result.best) == (60, 0, None)
    log = log_of(output)
    held_out = [entry for entry in log if "eval_dev-loss" in entry]
    assert [entry["step"] for entry in held_out] == [20, 40, 60]
    assert held_out[-1]["eval_dev-loss"] < 0.8 * held_out[0]["eval_dev-loss"]
    assert any(f"loss_{objective['objective']}" in entry for entry in log)
    (measured,) = sentence_similarity(SentenceSimilaritySettings(model=(str(output),), data=file))
    assert measured["measure"] == measure
    assert measured["value"] == pytest.approx(held_out[-1][f"eval_{measure}"], abs=0.1)
    assert measured["value"] > 0.8


def test_separate_encoders_are_rejected(tiny, data, tmp_path):
    train = write_examples(tmp_path / "train.jsonl", range(8))
    finetune(run_of(tmp_path / "untied", tiny(), train, untie=True, max_steps=1))
    with pytest.raises(UsageError, match="has separate encoders for queries and passages"):
        tune(tmp_path / "m", tmp_path / "untied", data["cosine-mse"], **PAIRS)
