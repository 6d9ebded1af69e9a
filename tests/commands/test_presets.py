"""`--list-presets` and `--show-preset` of `finetune` and `pretrain`."""

import re
import sys

import pytest
import yaml

from denserk.commands.app import run
from denserk.config.finetuning import resolve_run
from denserk.config.formats import CorpusSettings
from denserk.config.presets import find_preset, presets, shown_preset
from denserk.config.pretraining import recipes, shown_recipe
from tests.support.console import Terminal

PATHS = {"model": "m", "train_data": ("t.jsonl",), "output": "o"}


def printed(words, capsys):
    assert run(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "names"), [("finetune", list(presets())), ("pretrain", list(recipes()))]
)
def test_presets_are_tab_separated_lines_in_a_pipe(command, names, capsys):
    lines = printed([command, "--list-presets"], capsys).splitlines()
    header, *rows = [line.split("\t") for line in lines]
    assert header[:4] == ["preset", "what for", "trained", "size"]
    assert [row[0] for row in rows] == names
    assert {len(row) for row in rows} == {len(header)}
    assert all(all(row[:4]) for row in rows)


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("command", ["finetune", "pretrain"])
def test_presets_fit_a_terminal(command, width, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    assert run([command, "--list-presets"]) == 0
    lines = re.sub(r"\x1b\[\d*m", "", terminal.getvalue()).splitlines()
    assert max(map(len, lines)) <= width
    names = [line.split()[0] for line in lines if line[:1].strip()]
    expected = presets() if command == "finetune" else recipes()
    assert set(expected) <= set(names)
    assert "\\" not in terminal.getvalue()


@pytest.mark.parametrize("name", presets())
def test_a_shown_preset_is_a_file_that_trains_the_same(name, capsys, tmp_path):
    text = printed(["finetune", "--show-preset", name], capsys)
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    read_preset = find_preset(str(file))
    assert read_preset.settings == presets()[name].settings
    assert (read_preset.summary, read_preset.start, read_preset.data) == (
        presets()[name].summary,
        presets()[name].start,
        presets()[name].data,
    )
    assert all(shown_preset(name).sources.values())
    # a copy names the same sources
    assert shown_preset(str(file)).sources == shown_preset(name).sources


@pytest.mark.parametrize("name", recipes())
def test_a_shown_recipe_is_a_configuration_file(name, capsys):
    values = yaml.safe_load(printed(["pretrain", "--show-preset", name], capsys))
    shown = shown_recipe(name)
    assert len(values["summary"]) > 10
    for setting, value in shown.preset.settings.items():
        assert setting.replace("_", "-") in values, value
    assert all(shown.sources[setting] for setting in shown.preset.settings)


def test_sources_of_settings(capsys):
    lines = printed(["finetune", "--show-preset", "aggretriever-marco"], capsys).splitlines()
    source_by_setting = {}
    for line in lines:
        setting, _, source = line.partition("#")
        source_by_setting[setting.partition(":")[0]] = source.strip()
    assert source_by_setting["cls-weight"] == "released code"  # of a template, in the file
    assert source_by_setting["agg-dim"].startswith("paper (Aggretriever")
    lines = printed(["pretrain", "--show-preset", "master-small"], capsys).splitlines()
    assert "lr: 0.0001" in "\n".join(lines)
    (rate,) = [line for line in lines if line.startswith("mlm-probability")]
    assert rate.endswith("paper (MASTER, section 4)")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("finetune --show-preset agretriever", "did you mean aggretriever"),
        ("finetune --show-preset gone.yaml", "gone.yaml"),
        ("pretrain --show-preset mastr", "did you mean master"),
        (
            "pretrain --objective condenser --model m --corpus c --output o --preset released",
            "condenser has no such preset",
        ),
        ("pretrain", "--objective and --corpus and --output must be given"),
    ],
)
def test_what_is_no_preset_is_said(words, message, capsys):
    assert run(words.split()) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["aggretriever", "condenser", "cocondenser", "master", "mlr"])
def test_presets_for_ones_own_data_need_little_memory(name):
    settings = resolve_run(name, CorpusSettings(), PATHS)
    assert settings.cache.grad_cache
    assert settings.cache.p_chunk * settings.text["passage_max_length"] <= 16 * 128
    assert not settings.finetune.untie


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_comments_of_a_users_file_are_the_sources(mark, tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text(f"{mark}lr: 1e-5 # tried\r\nbatch-size: 4\r\n", "utf-8")
    lines = printed(["finetune", "--show-preset", str(file)], capsys).splitlines()
    assert [line for line in lines if line.startswith("lr:")] == ["lr: 1.0e-05    # tried"]
