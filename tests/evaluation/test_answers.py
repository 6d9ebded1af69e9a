import json
import os
import signal
import unicodedata
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.commands.retrieve import index, search
from denserk.config.evaluation import AnswerSettings, EvalSettings
from denserk.config.formats import TopicsFormat
from denserk.errors import DenserkError, InputError
from denserk.evaluation import answers as module
from denserk.evaluation.answers import judging, match_answers, tokens_of
from denserk.io.topics import read_qrels_map, read_queries, read_questions, write_queries
from denserk.tasks.evaluate_answers import BATCH, evaluate_answers
from tests.support.peers import run_pyserini

ALPHABET = "aAbB19Σσςé\u0301\u00c5\u212b İß.,'-_ \n\t\u00a0\u200b\u0000東京\U0001d7ce"


def slow_tokens(text):
    """DPR's tokens, sign by sign: runs of letters, numbers and marks; others by themselves."""
    tokens, run = [], ""
    for character in unicodedata.normalize("NFD", text) + " ":
        category = unicodedata.category(character)
        if category[0] in "LNM":
            run += character
            continue
        if run:
            tokens.append(run)
        run = ""
        if category[0] not in ("Z", "C"):
            tokens.append(character)
    return [token.lower() for token in tokens]


def slow_match(answers, text):
    found = slow_tokens(text)
    for answer in filter(None, map(slow_tokens, answers)):
        for start in range(len(found) - len(answer) + 1):
            if found[start : start + len(answer)] == answer:
                return True
    return False


@given(st.lists(st.text(ALPHABET, max_size=4), max_size=3), st.text(ALPHABET, max_size=30))
def test_a_match_is_a_contiguous_sequence_of_tokens(answers, text):
    assert tokens_of(text) == slow_tokens(text)
    assert match_answers(answers, [text])[0] == [slow_match(answers, text)]


ANSWERED = [(f"answer {number}",) for number in range(20)], [("an Answer\n1", "none")] * 20


@pytest.mark.slow
def test_several_processes_find_what_one_does():
    with judging(AnswerSettings()) as alone, judging(AnswerSettings(num_workers=2)) as together:
        assert list(alone(*ANSWERED)) == list(together(*ANSWERED))
        assert list(alone(*ANSWERED))[1] == ([True, False], [])


class DyingPool(ProcessPoolExecutor):
    def map(self, *arguments, **options):
        assert self.submit(signal.getsignal, signal.SIGINT).result() is signal.SIG_IGN
        os.kill(self.submit(os.getpid).result(), signal.SIGKILL)
        return super().map(*arguments, **options)


@pytest.mark.slow
def test_a_process_that_is_killed(monkeypatch):
    monkeypatch.setattr(module, "ProcessPoolExecutor", DyingPool)
    with (
        pytest.raises(DenserkError, match="was killed"),
        judging(AnswerSettings(num_workers=2)) as judges,
    ):
        list(judges(*ANSWERED))


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


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("psgs.tsv").write_text(CORPUS)
    Path("test.qa.csv").write_text(ANSWERS)
    Path("mine.trec").write_text(RUN)


def evaluated(answers="test.qa.csv", runs=("mine.trec",), **options):
    settings = {"measures": ("Success@1 Success@2 Success@3",), **options}
    return evaluate_answers(runs, answers, "psgs.tsv", EvalSettings(**settings))


def test_the_text_is_matched_and_the_title_is_not():
    result = evaluated()
    assert result.queries == ("0", "1", "2", "3")
    (run,) = result.runs
    assert run.per_query == {
        "Success@1": {"0": 0, "1": 1, "2": 0, "3": 0},
        "Success@2": {"0": 1, "1": 1, "2": 1, "3": 0},
        "Success@3": {"0": 1, "1": 1, "2": 1, "3": 0},
    }
    assert run.summary["Success@1"] == 1 / 4


def test_passages_that_the_corpus_lacks():
    Path("mine.trec").write_text(RUN + "3 Q0 gone 1 9 t\n3 Q0 4 2 8 t\n")
    with pytest.raises(InputError, match=r"no passages with 1 of the ids .* \('gone'\)"):
        evaluated()
    (run,) = evaluated(skip_missing=True, write_dpr_json="d.json").runs
    assert run.per_query["Success@1"]["3"] == 0  # it keeps its rank
    assert run.per_query["Success@2"]["3"] == 1
    assert [entry["id"] for entry in json.loads(Path("d.json").read_text())[3]["ctxs"]] == ["4"]


def test_entity_questions_keep_their_relations():
    Path("entityqs").mkdir()
    for relation, count in (("P17", 2), ("P20", 1)):
        records = [{"question": "where", "answers": ["york"]}] * count
        Path(f"entityqs/{relation}.test.json").write_text(json.dumps(records))
    Path("mine.trec").write_text("P17-0 Q0 1 1 9 t\nP17-1 Q0 4 1 9 t\nP20-0 Q0 2 1 9 t\n")
    (run,) = evaluated(answers="entityqs").runs
    assert run.summary["Success@1"] == 2 / 3
    assert run.over_relations["Success@1"] == 3 / 4
    related = {"id": "P17-0", "question": "where", "answers": ["york"], "relation": "P17"}
    other = {"id": "P20-0", "question": "where", "answers": ["york"]}
    Path("some.jsonl").write_text(f"{json.dumps(related)}\n{json.dumps(other)}\n")
    assert not evaluated(answers="some.jsonl").runs[0].over_relations


def test_several_runs_ties_and_questions_without_hits():
    Path("tied.trec").write_text("0 Q0 1 1 1.00000001 t\n0 Q0 2 2 1 t\n2 Q0 4 1 1 t\n")
    measures = {"measures": ("Success@1 RR@3 P@2",)}
    mine, tied = evaluated(runs=("mine.trec", "tied.trec"), **measures).runs
    assert mine.per_query["RR@3"] == {"0": 1 / 2, "1": 1, "2": 1 / 2, "3": 0}
    assert mine.per_query["P@2"] == {"0": 1 / 2, "1": 1 / 2, "2": 1 / 2, "3": 0}
    assert tied.per_query["Success@1"] == {"0": 0, "1": 0, "2": 1, "3": 0}  # "2" before "1"
    assert (tied.ties, tied.missing) == ({"0": 1}, ("1", "3"))
    left_out = evaluated(complete=False, runs=("tied.trec",), **measures).runs[0]
    assert left_out.per_query["Success@1"] == {"0": 0, "2": 1}
    (first,) = evaluated(max_hits=1, **measures).runs
    assert first.summary["RR@3"] == 1 / 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relevance_level": 2}, "--relevance-level: a passage hol"),
        ({"measures": ("AP",)}, "AP: answers judge only the first hits"),
        ({"runs": ("mine.trec", "b.trec"), "write_dpr_json": "d.json"}, "d.json: takes one run"),
        ({"answers": "ids.jsonl", "write_dpr_json": "d.json"}, "ids.jsonl lacks the text of 1 of"),
        ({"runs": ("other.trec",)}, r"no hits for the questions '0', '1', '2', \.\.\."),
    ],
)
def test_rejected_inputs(options, message):
    Path("ids.jsonl").write_text('{"_id": "0", "answers": ["a"]}\n')
    Path("other.trec").write_text("a Q0 1 1 3 t\n")
    with pytest.raises(DenserkError, match=message):
        evaluated(**options)
    assert not Path("d.json").exists()


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
def test_accuracies_are_pyserinis(shared_data, tmp_path):
    """Pyserini counts our `has_answer`, and then looks for the answers itself."""
    folder = shared_data / "nq-qed"
    judged = read_qrels_map(str(folder / "qrels" / "dev.tsv"))
    answers = {q.qid: q.answers for q in read_questions(str(folder / "answers.jsonl.gz"))}
    dev = [query for query in read_queries(str(folder)) if query.qid in judged][:600]
    questions = [q._replace(answers=answers[q.qid]) for q in dev]
    questions_file, run = tmp_path / "dev.qa.csv", tmp_path / "run.trec"
    write_queries(questions_file, questions, TopicsFormat.DPR)
    index(type="bm25", corpus=folder, output=tmp_path / "bm25")
    search(index=tmp_path / "bm25", topics=questions_file, output=run, hits=100)
    written = tmp_path / "run.json"
    settings = EvalSettings(topk=(1, 5, 20, 100), write_pyserini_json=str(written))
    files = ([str(run)], str(questions_file), str(folder))
    summary = evaluate_answers(*files, settings).runs[0].summary
    ours = [f"Top{k}\taccuracy: {summary[f'Success@{k}']:.4f}" for k in (1, 5, 20, 100)]
    assert run_pyserini(THEIRS, written, folder=tmp_path).splitlines() == ours * 2
    assert len(dev) > 2 * BATCH
    assert 0.2 < summary["Success@1"] < summary["Success@100"] < 1
