import pytest
from transformers import TrainerControl, TrainerState

from denserk.errors import OutputError
from denserk.settings.training import DevMetric
from denserk.training.best import LOWER_IS_BETTER, KeepBest, best_of, values_of

LOSS, RR = DevMetric.LOSS, DevMetric.RR_10


@pytest.mark.parametrize("metric", DevMetric)
def test_best_is_the_first_of_the_best(metric):
    sign = 1 if metric in LOWER_IS_BETTER else -1
    assert best_of([sign * v for v in (3.0, 1.0, 2.0, 1.0)], metric) == 1


def test_values_are_read_from_the_log():
    history = [{"loss": 1.0}, {"eval_RR@10": 0.2, "eval_dev-loss": 3.0}, {"eval_RR@10": 0.3}]
    assert values_of(history, RR) == [0.2, 0.3]
    assert values_of(history, LOSS) == [3.0]


def walk(folder, metric, values, patience=None, first=True):
    """Validates with these values in turn; which of them were kept, and where the run stopped."""
    state = TrainerState(is_world_process_zero=first)
    kept: list[int] = []

    def save(where):
        where.mkdir(exist_ok=True)
        (where / "number").write_text(str(len(state.log_history)))
        kept.append(len(state.log_history) - 1)

    callback, control = KeepBest(folder, save, metric, patience), TrainerControl()
    for number, value in enumerate(values):
        state.log_history.append({f"eval_{metric.value}": value})
        callback.on_evaluate(None, state, control)
        if control.should_training_stop:
            return kept, number
    return kept, None


@pytest.mark.parametrize(
    ("metric", "values", "kept"),
    [
        (LOSS, [3.0, 2.0, 2.5, 2.0, 1.0], [0, 1, 4]),
        (RR, [0.1, 0.3, 0.2, 0.3, 0.4], [0, 1, 4]),
        (DevMetric.AVERAGE_RANK, [5.0, 6.0, 4.0], [0, 2]),
    ],
)
def test_only_better_ones_are_kept(tmp_path, metric, values, kept):
    assert walk(tmp_path / "best", metric, values) == (kept, None)
    assert (tmp_path / "best" / "number").read_text() == str(kept[-1] + 1)
    assert [item.name for item in tmp_path.iterdir()] == ["best"]


@pytest.mark.parametrize(("patience", "stopped"), [(1, 2), (2, 5), (3, 6), (None, None), (9, None)])
def test_patience_counts_since_the_best(tmp_path, patience, stopped):
    values = [3.0, 2.0, 2.5, 1.9, 2.0, 1.9, 2.1]
    assert walk(tmp_path / "best", LOSS, values, patience)[1] == stopped


def test_other_processes_write_nothing(tmp_path):
    assert walk(tmp_path / "best", LOSS, [3.0, 2.0, 2.5], 1, first=False) == ([], 2)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_best_so_far(tmp_path):
    state, control = TrainerState(is_world_process_zero=True), TrainerControl()
    (tmp_path / "best").mkdir()

    def save(where):
        where.mkdir(exist_ok=True)
        raise OSError(28, "No space left on device")

    state.log_history.append({"eval_RR@10": 0.5})
    with pytest.raises(OutputError, match="no room left"):
        KeepBest(tmp_path / "best", save, RR, None).on_evaluate(None, state, control)
    assert [item.name for item in tmp_path.iterdir()] == ["best"]
