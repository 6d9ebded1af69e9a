"""The card of a model that was fine-tuned: what it says, and that its commands and code run."""

import json
import re
import shlex
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

import denserk
from denserk.commands.app import run
from denserk.io.runs import read_run
from tests.conftest import QUERIES


def test_a_card_reports_the_run_and_its_examples_work(tiny, toy, monkeypatch):
    monkeypatch.chdir(toy)
    odd = "a|`b`: #*c*.jsonl"  # to Markdown and YAML
    rows = [{"query": q, "pos": ["the cat"], "neg": ["a boat"]} for q in QUERIES.values()]
    Path(odd).write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"batch_size": 1, "max_steps": 3, "seed": 9, "lr": 1e-3, "representation": "mean"}
    choice = {"dev_data": odd, "eval_steps": 1, "best_by": "RR@10", "device": "cpu"}
    denserk.finetune(tiny(), odd, "PATH", **options, **choice)
    card = ModelCard.load("PATH/README.md")
    log = json.loads(Path("PATH/training.json").read_text())["log"]
    best = max(entry["eval_RR@10"] for entry in log if "eval_RR@10" in entry)
    results = {e.metric_type: e.metric_value for e in card.data.eval_results}
    assert results["RR@10"] == pytest.approx(best, abs=1e-4)
    found = dict(re.findall(r"^\| ([^|]+) \| (.*) \|$", card.text, re.MULTILINE))
    assert found["Training data"] == r'`"a\|\u0060b\u0060: #*c*.jsonl"`'
    made = [found[name] for name in ("Contents", "Learning rate", "Steps", "Seed")]
    assert made == ["3 examples, 2 passages", "0.001", "3", "9"]
    commands, code = re.findall(r"```(?:bash|python)\n(.*?)```", card.text, re.DOTALL)[:2]
    assert all(run(shlex.split(line)[1:]) == 0 for line in commands.splitlines())
    assert [hits.qid for hits in read_run("run.trec")] == list(QUERIES)
    exec(code)
