"""RR@10 by MS MARCO's own law, from its own run files, on its own judgements."""

import gzip
from pathlib import Path
from random import Random

import pytest

from denserk.config.evaluation import EvaluationSettings
from denserk.evaluation.evaluator import evaluate

Ranked = dict[str, list[str]]


def law(judged: dict[str, set[str]], ranked: Ranked) -> float:
    """Of every judged query the first relevant passage among ten; a missing query counts as 0."""
    total = 0.0
    for qid, relevant in judged.items():
        for place, docid in enumerate(ranked.get(qid, [])[:10]):
            if docid in relevant:
                total += 1 / (place + 1)
                break
    return total / len(judged)


def measured(run: Path, qrels: Path, measure: str = "RR@10") -> float:
    result = evaluate([str(run)], str(qrels), EvaluationSettings((measure,)))
    return result.runs[0].summary[measure]


@pytest.fixture
def dev(shared_data: Path, tmp_path: Path) -> tuple[Path, dict[str, set[str]]]:
    """The 6,980 queries of the small dev set: a file, and its content."""
    text = gzip.decompress((shared_data / "topics" / "msmarco-dev.qrels.txt.gz").read_bytes())
    (tmp_path / "qrels.txt").write_bytes(text)
    judged: dict[str, set[str]] = {}
    for line in text.decode().splitlines():
        qid, _, docid, grade = line.split()
        assert grade == "1"
        judged.setdefault(qid, set()).add(docid)
    assert len(judged) == 6980
    return tmp_path / "qrels.txt", judged


def ranking(judged: dict[str, set[str]], seed: int) -> Ranked:
    """Of most queries 15 passages, some positives among them anywhere; other queries too."""
    draw = Random(seed)
    ranked: Ranked = {"9999999": ["1", "2"]}
    for qid, relevant in judged.items():
        if draw.random() < 0.9:
            others = [str(9_000_000 + draw.randrange(10**6)) for _ in range(14)]
            found = [docid for docid in sorted(relevant) if draw.random() < 0.7]
            hits = list(dict.fromkeys(others + found))
            draw.shuffle(hits)
            ranked[qid] = hits
    return ranked


@pytest.mark.parametrize("shape", ["msmarco", "trec"])
def test_the_law_of_ms_marco(
    dev: tuple[Path, dict[str, set[str]]], tmp_path: Path, shape: str
) -> None:
    qrels, judged = dev
    ranked = ranking(judged, seed=3)
    with (tmp_path / "run").open("w") as out:
        for qid, docids in ranked.items():
            for rank, docid in enumerate(docids, 1):
                columns = (qid, docid, rank) if shape == "msmarco" else _trec(qid, docid, rank)
                out.write("\t".join(map(str, columns)) + "\n")
    expected = law(judged, ranked)
    assert 0.1 < expected < 0.9
    assert measured(tmp_path / "run", qrels) == pytest.approx(expected, abs=1e-12)


def _trec(qid: str, docid: str, rank: int) -> tuple[object, ...]:
    return qid, "Q0", docid, rank, 100.5 - rank, "t"


@pytest.mark.parametrize("run", ["bm25", "tasb", "splade-pp-ed"])
def test_published_runs_by_the_law(shared_data: Path, tmp_path: Path, run: str) -> None:
    folder = shared_data / "marco-dl19"
    qrels = folder / "nist" / "qrels.dl19-passage.txt"
    judged: dict[str, set[str]] = {}
    for line in qrels.read_text().splitlines():
        qid, _, docid, grade = line.split()
        judged.setdefault(qid, set()).update([docid] if int(grade) > 1 else [])
    scores: dict[str, dict[str, float]] = {}
    path = folder / "runs" / f"{run}.trec.gz"
    with gzip.open(path, "rt") as lines:
        for line in lines:
            qid, _, docid, _, score, _ = line.split()
            scores.setdefault(qid, {})[docid] = float(score)
    ranked = {
        qid: [docid for _, docid in sorted((-score, docid) for docid, score in hits.items())]
        for qid, hits in scores.items()
    }
    expected = law(judged, ranked)
    assert measured(path, qrels, "RR(rel=2)@10") == pytest.approx(expected, abs=1e-12)
