import json
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.config.evaluation import AnswerSettings, EvaluationSettings
from denserk.config.formats import TopicsFormat
from denserk.errors import InputError, MismatchError, UsageError
from denserk.evaluation.answers import BATCH, best_hits, evaluate_answers
from denserk.evaluation.results import Ties
from denserk.io.corpus import read_passages
from denserk.io.qrels import read_qrels_map
from denserk.io.runs import write_run
from denserk.io.topics import read_queries, read_questions, write_queries
from tests.peers import run_pyserini
from tests.reporters import Heard

CORPUS = (
    "id\ttext\ttitle\n"
    "1\tThe old river runs to New\u00a0York.\tRiver\n"
    "2\tIn York\tNew York\n"
    '3\t"a ""Café"" in Vienna"\tCoffee\n'
    "4\tborn in 1990\tX\n"
)
ANSWERS = (
    "where does it run\t['NYC', 'New York']\n"
    'what is in Vienna\t"[\'a ""cafe\u0301""\', ""bar\'s""]"\n'
    "when\t['.', '1990']\n"
    "why\t['1990']\n"
)
RUN = (
    "0 Q0 2 1 9 t\n0 Q0 1 2 8 t\n0 Q0 4 3 7 t\n"
    "1 Q0 3 1 5 t\n"
    "2 Q0 2 1 5 t\n2 Q0 1 2 4 t\n2 Q0 4 3 3 t\n"
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("psgs.tsv").write_text(CORPUS)
    Path("test.qa.csv").write_text(ANSWERS)
    Path("mine.trec").write_text(RUN)
    return tmp_path


def evaluated(listener=None, settings=None, answers="test.qa.csv", runs=("mine.trec",), **options):
    matching = AnswerSettings(**options)
    settings = settings or EvaluationSettings(("Success@1 Success@2 Success@3",))
    listener = listener or Heard()
    return evaluate_answers(runs, answers, "psgs.tsv", settings, matching)


@pytest.mark.usefixtures("files")
def test_the_text_is_matched_and_the_title_is_not():
    result = evaluated()
    assert result.queries == ("0", "1", "2", "3")
    (run,) = result.runs
    assert run.name == "mine"
    assert run.per_query == {
        "Success@1": {"0": 0, "1": 1, "2": 0, "3": 0},
        "Success@2": {"0": 1, "1": 1, "2": 1, "3": 0},
        "Success@3": {"0": 1, "1": 1, "2": 1, "3": 0},
    }
    assert run.summary["Success@1"] == 1 / 4


@pytest.mark.usefixtures("files")
def test_defaults_gates_and_depths():
    result = evaluated(settings=EvaluationSettings(min=("RR@3=0.1", "Success@5=0")))
    assert list(map(str, result.measures)) == ["Success@5", "Success@20", "Success@100", "RR@3"]
    result = evaluated(settings=EvaluationSettings(), topk=(1, 7))
    assert list(map(str, result.measures)) == ["Success@1", "Success@7"]


@pytest.mark.usefixtures("files")
def test_what_is_told():
    Path("test.qa.csv").write_text("a\t['.', ' ']\nb\t[]\nc\t['x']\nd\t['y']\n")
    Path("mine.trec").write_text("0 Q0 2 1 9 t\n1 Q0 2 1 9 t\n2 Q0 2 1 9 t\nq Q0 2 1 9 t\n")
    listener = Heard()
    result = evaluated()
    assert result.runs[0].summary["Success@1"] == 0
    assert listener.warnings == [
        "questions without an answer, which no passage holds: 1 ('1')",
        "questions with an answer of no letter, number or sign, which no passage holds: 1 ('0'); "
        "DPR counts every passage (--set strict-dpr=yes)",
        "mine: 1 of 4 questions are not in the run: '3'; they count as 0",
    ]
    assert listener.notes[-1] == "mine: queries without answers, which do not count: 1 ('q')"
    assert evaluated(strict_dpr=True).runs[0].summary["Success@1"] == 1 / 4
    assert "which every passage holds: 1 ('0')" in listener.warnings[-2]
    left_out = EvaluationSettings(("Success@1",), complete=False)
    assert evaluated(settings=left_out, strict_dpr=True).runs[0].summary["Success@1"] == 1 / 3


@pytest.mark.usefixtures("files")
def test_patterns():
    Path("curated.jsonl").write_text(
        '{"question": "when", "answer": ["in\\\\s19\\\\d\\\\d|nothing", "("]}\n'
    )
    Path("mine.trec").write_text("0 Q0 1 1 9 t\n0 Q0 4 2 8 t\n")
    listener = Heard()
    (run,) = evaluated(answers="curated.jsonl", regex=True).runs
    assert run.summary == {"Success@1": 0, "Success@2": 1, "Success@3": 1}
    assert listener.warnings == [
        "answers that are not valid regular expressions, which no passage holds: 1 ('(')"
    ]


@pytest.mark.usefixtures("files")
def test_passages_that_the_corpus_lacks():
    Path("mine.trec").write_text(RUN + "3 Q0 gone 1 9 t\n3 Q0 4 2 8 t\n")
    with pytest.raises(InputError, match=r"no passages with 1 of the ids .* \('gone'\)"):
        evaluated()
    listener = Heard()
    (run,) = evaluated(skip_missing=True, write_dpr_json="d.json").runs
    assert run.per_query["Success@1"]["3"] == 0  # it keeps its rank
    assert run.per_query["Success@2"]["3"] == 1
    assert listener.warnings == ["passages missing in psgs.tsv, which hold no answer: 1"]
    assert [entry["id"] for entry in json.loads(Path("d.json").read_text())[3]["ctxs"]] == ["4"]


@pytest.mark.usefixtures("files")
def test_files_hold_the_passages_up_to_the_greatest_depth():
    matching = {"write_dpr_json": "d.json", "write_pyserini_json": "p.json.gz"}
    evaluated(settings=EvaluationSettings(("Success@2",)), **matching)
    entries = json.loads(Path("d.json").read_text())
    assert [entry["question"] for entry in entries][2:] == ["when", "why"]
    assert [(c["id"], c["has_answer"]) for c in entries[0]["ctxs"]] == [("2", False), ("1", True)]
    assert [(c["id"], c["has_answer"]) for c in entries[2]["ctxs"]] == [("2", False), ("1", True)]
    assert entries[3]["ctxs"] == []
    again = evaluated(answers="p.json.gz")
    assert again.runs[0].per_query == evaluated().runs[0].per_query


@pytest.mark.usefixtures("files")
def test_entity_questions_keep_their_relations():
    Path("entityqs").mkdir()
    for relation, count in (("P17", 2), ("P20", 1)):
        records = [{"question": "where", "answers": ["york"]}] * count
        Path(f"entityqs/{relation}.test.json").write_text(json.dumps(records))
    Path("mine.trec").write_text("P17-0 Q0 1 1 9 t\nP17-1 Q0 4 1 9 t\nP20-0 Q0 2 1 9 t\n")
    (run,) = evaluated(answers="entityqs").runs
    assert run.summary["Success@1"] == 2 / 3
    assert run.over_relations["Success@1"] == 3 / 4


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 5), min_size=1),
    st.integers(1, 6),
)
def test_whatever_the_order_of_ties_the_first_are_kept(hits, depth):
    kept = best_hits(list(hits), list(map(float, hits.values())), depth)
    for last in (False, True):
        by_id = sorted(hits, reverse=last)
        first = sorted(by_id, key=lambda docid: -hits[docid])[:depth]
        assert set(first) <= set(kept)
    assert list(kept) == sorted(kept, key=lambda docid: (kept[docid], docid), reverse=True)
    assert len(kept) == len(hits) or min(kept.values()) >= sorted(hits.values())[-depth]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("a Q0 1 1 3 t\n", "mine answers queries 'a'; the answers are for '0', '1', '2', ...: non"),
        ("\n", "mine holds no hit at all; the answers are for '0', '1', '2', ..."),
    ],
)
def test_a_run_over_other_questions(run, said):
    Path("mine.trec").write_text(run)
    with pytest.raises(MismatchError, match=said):
        evaluated()


@pytest.mark.usefixtures("files")
def test_several_runs_ties_and_questions_without_hits():
    Path("tied.trec").write_text("0 Q0 1 1 1 t\n0 Q0 2 2 1 t\n2 Q0 4 1 1 t\n")
    settings = EvaluationSettings(("Success@1 RR@3 P@2",))
    mine, tied = evaluated(settings=settings, runs=("mine.trec", "tied.trec")).runs
    assert mine.per_query["RR@3"] == {"0": 1 / 2, "1": 1, "2": 1 / 2, "3": 0}
    assert mine.per_query["P@2"] == {"0": 1 / 2, "1": 1 / 2, "2": 1 / 2, "3": 0}
    assert tied.per_query["Success@1"] == {"0": 0, "1": 0, "2": 1, "3": 0}  # "2" before "1"
    assert (tied.ties, tied.missing) == (Ties(1, ("0",)), ("1", "3"))
    left_out = evaluated(settings=replace(settings, complete=False), runs=("tied.trec",)).runs[0]
    assert left_out.per_query["Success@1"] == {"0": 0, "2": 1}


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("who\t['a']\nwhat\t['b\n", r"test.qa.csv, line 2: found answers \"\['b\""),
        ("who\t['a'\n", r"test.qa.csv, line 1: found answers \"\['a'\"; expected a list of str"),
        ("who\t__import__('os')\n", 'line 1: found answers "__import__'),
        ("who\t[1]\n", r"line 1: found answers '\[1\]'"),
        ("who\t[]\n", "found no answers"),
    ],
)
def test_broken_answers_are_named_with_their_line(text, told):
    Path("test.qa.csv").write_text(text)
    with pytest.raises(InputError, match=told):
        evaluated()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"settings": EvaluationSettings(("R@20 x",))}, "R@20 needs every.*; x is unknown"),
        ({"settings": EvaluationSettings(min=("AP=0.1",))}, "AP needs every relevant passage"),
        ({"settings": EvaluationSettings(relevance_level=2)}, "--relevance-level 2: a passage hol"),
        ({"settings": EvaluationSettings(remove_query=True)}, "--remove-query drops passages"),
        ({"runs": ()}, "no run is named"),
        ({"runs": ("mine.trec", "mine.trec")}, "mine.trec: named twice"),
        ({"runs": ("-",), "answers": "-"}, r"standard input \(-\) can be only one"),
        ({"runs": ("mine.trec", "b.trec"), "write_dpr_json": "d.json"}, "d.json: the passages of"),
        (
            {"answers": "ids.jsonl", "write_dpr_json": "d.json"},
            "ids.jsonl lacks the text of 1 of 1",
        ),
        ({"answers": "none.qa.csv"}, "none.qa.csv: no such file"),
    ],
)
def test_refusals(options, told):
    Path("ids.jsonl").write_text('{"_id": "0", "answers": ["a"]}\n')
    with pytest.raises(UsageError, match=told):
        evaluated(**options)
    assert not Path("d.json").exists()


def overlap_run(corpus, queries, depth=100):
    """A run by the rare words that queries and passages share."""
    postings = defaultdict(set)
    for passage in corpus:
        for word in f"{passage.title} {passage.text}".lower().split():
            postings[word].add(passage.docid)
    for query in queries:
        scores: dict[str, float] = defaultdict(float)
        for word in set(query.text.lower().split()):
            found = postings.get(word, ())
            for docid in found if len(found) < 500 else ():
                scores[docid] += 1 / len(found)
        ranked = sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))[:depth]
        yield query.qid, [(docid, 1000.0 - rank) for rank, (docid, _) in enumerate(ranked)]


THEIRS = """
import json, sys
from pyserini.eval.evaluate_dpr_retrieval import evaluate_retrieval
given = json.load(open(sys.argv[1]))
evaluate_retrieval(sys.argv[1], [1, 5, 20, 100])
for question in given.values():
    for context in question["contexts"]:
        del context["has_answer"]
json.dump(given, open("unmatched.json", "w"))
evaluate_retrieval("unmatched.json", [1, 5, 20, 100])
"""


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("name", ["squad", "nq-qed"])
def test_accuracies_are_pyserinis(shared_data, tmp_path, name):
    """Pyserini counts our `has_answer`, and then looks for the answers itself."""
    folder = shared_data / name
    corpus = list(read_passages(str(folder)))
    judged = read_qrels_map(str(folder / "qrels" / "dev.tsv"))
    answers = {q.qid: q.answers for q in read_questions(str(folder / "answers.jsonl.gz"))}
    dev = [query for query in read_queries(str(folder)) if query.qid in judged][:600]
    questions = [q._replace(answers=answers[q.qid]) for q in dev]
    write_queries(tmp_path / "dev.qa.csv", questions, TopicsFormat.DPR)
    numbered = [query._replace(qid=str(number)) for number, query in enumerate(dev)]
    found = [(qid, hits) for qid, hits in overlap_run(corpus, numbered) if hits]
    write_run(tmp_path / "run.trec", found)
    result = evaluate_answers(
        [str(tmp_path / "run.trec")],
        str(tmp_path / "dev.qa.csv"),
        str(folder),
        matching=AnswerSettings(
            topk=(1, 5, 20, 100), write_pyserini_json=str(tmp_path / "run.json")
        ),
    )
    summary = result.runs[0].summary
    ours = [f"Top{k}\taccuracy: {summary[f'Success@{k}']:.4f}" for k in (1, 5, 20, 100)]
    theirs = run_pyserini(THEIRS, tmp_path / "run.json", folder=tmp_path).splitlines()
    assert theirs == ours * 2
    assert len(dev) > 2 * BATCH
    assert 0.2 < summary["Success@1"] < summary["Success@100"] < 1
    assert not math.isclose(summary["Success@5"], summary["Success@20"])
