import pytest

from denserk.commands.app import run
from denserk.tasks import finetune, pretrain
from denserk.training.run_folder import TrainingResult

BASIC = ("finetune", "--model", "m", "--train-data", "t.jsonl", "--output", "o")
PRESET = (*BASIC, "--preset", "aggretriever-marco")
MASTER = ("pretrain", "--objective", "master", "--model", "m", "--corpus", "c", "--output", "o")


@pytest.fixture
def started_runs(monkeypatch):
    """The runs that commands would start to train."""
    runs = []

    def train(run):
        runs.append(run)
        return TrainingResult(steps=1234, first_step=0, loss=0.5)

    monkeypatch.setattr(finetune, "finetune", train)
    monkeypatch.setattr(pretrain, "pretrain", train)
    return runs


@pytest.mark.parametrize(
    ("words", "section", "field", "value"),
    [
        ((*PRESET, "--train-n-passages", "4"), "sampling", "group_size", 4),
        ((*PRESET, "--set", "p-chunk=9"), "cache", "p_chunk", 9),
        ((*MASTER, "--num-train-epochs", "7"), "optimizer", "max_steps", None),
        ((*MASTER, "--set", "keep-steps=10,20"), "optimizer", "keep_steps", (10, 20)),
        ((*MASTER, "--preset", "released"), "masking", "npr", "half"),
        ((*MASTER, "--corpus", "d"), "pretrain", "corpus", ("c", "d")),
    ],
)
def test_options_override_presets_and_have_familiar_aliases(
    started_runs, words, section, field, value
):
    assert run(words) == 0
    assert getattr(getattr(started_runs[0], section), field) == value


def test_a_file_of_ones_own_is_a_preset(started_runs, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "summary: a first run\nfields: [title, text]\nlr: 5e-6\nmax-steps: 300\n"
        "positive: rotate\nlayers: &layers [12, 8]\nnegative_pool: null\nnormalize_quotes: true\n"
    )
    assert run([*BASIC, "--preset", str(file), "--batch-size", "16"]) == 0
    assert started_runs[0].notes[0] == f"preset {file}: a first run"
    chosen = started_runs[0].as_json()
    assert chosen["preset"] == str(file)
    assert chosen["text"] == {"fields": ("title", "text"), "normalize_quotes": True}
    assert chosen["representation"] == {"layers": (12, 8)}
    picked = {name: chosen["optimizer"][name] for name in ("lr", "max_steps", "batch_size")}
    assert picked == {"lr": 5e-6, "max_steps": 300, "batch_size": 16}


@pytest.mark.parametrize(
    ("text", "status", "messages"),
    [
        ("epoch: 3\n", 2, ["epoch is not a setting (did you mean epochs?)"]),
        ("lr: 1e-5\nseed: 1\nlr: 2e-5\n", 1, ["line 3", "'lr' is repeated"]),
        (None, 2, ["cannot be read: No such file"]),
    ],
)
def test_a_wrong_file_is_one_line(started_runs, capsys, tmp_path, text, status, messages):
    file = tmp_path / "mine.yaml"
    if text is not None:
        file.write_text(text)
    assert run([*BASIC, "--preset", str(file)]) == status
    error = capsys.readouterr().err.splitlines()[0]
    assert error.startswith(f"error: {file}")
    for message in messages:
        assert message in error
    assert not started_runs


def test_other_processes_log_nothing(started_runs, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert run(PRESET) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.delenv("RANK")
    assert run(BASIC) == 0  # and the next command of this process speaks again
    assert capsys.readouterr().err != ""


def test_a_taken_output_is_said_before_the_model_is_loaded(tmp_path, capsys, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    monkeypatch.setattr("denserk.io.model_files._locate", None)  # nothing looks for the model
    words = ["--model", "absent", "--output", str(tmp_path / "mine")]
    assert run(["finetune", "--train-data", "absent.jsonl", *words]) == 2
    assert "thesis.tex" in capsys.readouterr().err
    words = ["--objective", "mlm", "--corpus", "absent.txt", *words]
    assert run(["pretrain", *words]) == 2
    assert "thesis.tex" in capsys.readouterr().err
