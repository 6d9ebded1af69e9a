from types import SimpleNamespace

import pytest

from denserk.errors import OutputError
from denserk.training.kept import KeepSteps, save_whole


def writer(text):
    def save(folder):
        folder.mkdir(exist_ok=True)
        (folder / "weights").write_text(text)

    return save


def test_a_folder_is_replaced_once_the_new_one_is_whole(tmp_path):
    folder = tmp_path / "steps" / "step-3"
    save_whole(folder, writer("old"))

    def broken(part):
        writer("new")(part)
        raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match="cannot be written"):
        save_whole(folder, broken)
    assert (folder / "weights").read_text() == "old"
    save_whole(folder, writer("new"))
    assert (folder / "weights").read_text() == "new"
    assert [path.name for path in folder.parent.iterdir()] == ["step-3"]


@pytest.mark.parametrize(("first", "kept"), [(True, ["step-2", "step-5"]), (False, [])])
def test_chosen_steps_are_kept_by_the_first_process(tmp_path, first, kept):
    callback = KeepSteps(tmp_path / "steps", writer("x"), (2, 5, 100))
    for step in range(1, 8):
        state = SimpleNamespace(global_step=step, is_world_process_zero=first)
        callback.on_step_end(None, state, None)
    assert sorted(path.name for path in tmp_path.glob("steps/*")) == kept
