import gzip
from pathlib import Path

from denserk.config.evaluation import EvaluationSettings, OutputFormat, ReportSettings
from denserk.evaluation.measures import TREC_NAMES
from denserk.evaluation.tables import render
from denserk.tasks.evaluate import evaluate

Numbers = dict[tuple[str, str], str]
KNOWN = {"runid", *TREC_NAMES}


def parse(text: str) -> Numbers:
    """(measure, query or `all`) -> the number as printed."""
    lines = [line.split() for line in text.splitlines()]
    return {(name, qid): value for name, qid, value in lines}


def measured(run: Path, qrels: Path, measures: str, level: int = 1) -> Numbers:
    settings = EvaluationSettings((measures,), relevance_level=level)
    result = evaluate([str(run)], str(qrels), settings)
    return parse(render(result, ReportSettings(per_query=True), OutputFormat.TREC_EVAL))


def known(numbers: Numbers) -> Numbers:
    """Without the lines whose measure ir-measures does not know."""
    return {key: value for key, value in numbers.items() if _base(key[0]) in KNOWN}


def _base(name: str) -> str:
    return name if name in KNOWN or name in ("ndcg_rel", "11pt_avg") else name.rpartition("_")[0]


def test_its_own_test_run(shared_data: Path) -> None:
    folder = shared_data / "trec-eval"
    numbers = measured(folder / "results.test", folder / "qrels.test", "all_trec")
    expected = known(parse((folder / "out.test.a").read_text()))
    # trec_eval 10 rounds recall levels to whole passages, 9 (and ir-measures) adds 0.9 and cuts.
    assert expected.pop(("iprec_at_recall_0.10", "all")) == "0.3885"
    assert expected.pop(("iprec_at_recall_0.60", "all")) == "0.0858"
    assert {key: numbers[key] for key in expected} == expected
    assert {_base(name) for name, _ in expected} == KNOWN


def test_every_topic_of_a_real_run_at_level_2(shared_data: Path) -> None:
    folder = shared_data / "dl-hard"
    with gzip.open(folder / "bm25.eval.gz", "rt") as lines:
        expected = known(parse(lines.read()))
    numbers = measured(folder / "bm25.run.gz", folder / "dl_hard-passage.qrels", "all_trec", 2)
    # trec_eval -c -l 2 counts num_rel at grade 2 for a topic, but at grade 1 over all of them.
    topics = [int(v) for (name, qid), v in expected.items() if name == "num_rel" and qid != "all"]
    assert expected.pop(("num_rel", "all")) == "1794"
    assert numbers["num_rel", "all"] == str(sum(topics)) == "984"
    assert {key: numbers[key] for key in expected} == expected
    assert len(expected) == 64 * 50 + 66
