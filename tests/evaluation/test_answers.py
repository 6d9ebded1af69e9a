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
from denserk.io.qrels import read_qrels_map
from denserk.io.topics import read_queries, read_questions, write_queries
from denserk.tasks.evaluate_answers import BATCH, evaluate_answers
from tests.support.peers import run_pyserini

ALPHABET = "aAbB19Σσςé\u0301\u00c5\u212b İß.,'-_ \n\t\u00a0\u200b\u0000東京\U0001d7ce"


def slow_tokens(text):
    """DPR's tokens, sign by sign: runs of letters, numbers and marks; others by themselves."""
    tokens = []
    word = ""
    for character in unicodedata.normalize("NFD", text) + " ":
        category = unicodedata.category(character)[0]
        if category in "LNM":
            word += character
            continue
        if word:
            tokens.append(word)
            word = ""
        if category not in "ZC":
            tokens.append(character)
    return [token.lower() for token in tokens]


def slow_match(answers, text):
    tokens = slow_tokens(text)
    for answer in answers:
        answer_tokens = slow_tokens(answer)
        length = len(answer_tokens)
        for start in range(len(tokens)):
            if answer_tokens and tokens[start : start + length] == answer_tokens:
                return True
    return False


@given(st.lists(st.text(ALPHABET, max_size=4), max_size=3), st.text(ALPHABET, max_size=30))
def test_a_match_is_a_contiguous_sequence_of_tokens(answers, text):
    assert tokens_of(text) == slow_tokens(text)
    assert match_answers(answers, [text])[0] == [slow_match(answers, text)]


# of twenty questions
MANY_ANSWERS = [(f"answer {number}",) for number in range(20)]
MANY_TEXTS = [("an Answer\n1", "none") for _ in range(20)]


@pytest.mark.slow
def test_several_processes_find_what_one_does():
    with judging(AnswerSettings(num_workers=1)) as judge:
        verdicts = list(judge(MANY_ANSWERS, MANY_TEXTS))
    with judging(AnswerSettings(num_workers=2)) as judge:
        assert list(judge(MANY_ANSWERS, MANY_TEXTS)) == verdicts
    assert verdicts[1] == ([True, False], [])


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
        list(judges(MANY_ANSWERS, MANY_TEXTS))


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
    *_, question3 = json.loads(Path("d.json").read_text())
    assert [context["id"] for context in question3["ctxs"]] == ["4"]


def test_entity_questions_keep_their_relations():
    question = {"question": "where", "answers": ["york"]}
    Path("entityqs").mkdir()
    Path("entityqs/P17.test.json").write_text(json.dumps([question, question]))
    Path("entityqs/P20.test.json").write_text(json.dumps([question]))
    Path("mine.trec").write_text("P17-0 Q0 1 1 9 t\nP17-1 Q0 4 1 9 t\nP20-0 Q0 2 1 9 t\n")
    (run,) = evaluated(answers="entityqs").runs
    assert run.summary["Success@1"] == 2 / 3
    assert run.over_relations["Success@1"] == 3 / 4


def test_there_is_no_mean_over_relations_if_a_question_has_none():
    with_relation = {"id": "P17-0", "question": "where", "answers": ["york"], "relation": "P17"}
    without_relation = {"id": "P20-0", "question": "where", "answers": ["york"]}
    Path("mine.trec").write_text("P17-0 Q0 1 1 9 t\nP20-0 Q0 2 1 9 t\n")
    Path("some.jsonl").write_text(f"{json.dumps(with_relation)}\n{json.dumps(without_relation)}\n")
    (run,) = evaluated(answers="some.jsonl").runs
    assert not run.over_relations


def test_measures_of_the_first_hits():
    (run,) = evaluated(measures=("RR@3 P@2",)).runs
    assert run.per_query["RR@3"] == {"0": 1 / 2, "1": 1, "2": 1 / 2, "3": 0}
    assert run.per_query["P@2"] == {"0": 1 / 2, "1": 1 / 2, "2": 1 / 2, "3": 0}
    (best_hits,) = evaluated(measures=("RR@3",), max_hits=1).runs
    assert best_hits.summary["RR@3"] == 1 / 4


def test_several_runs_of_which_one_has_ties_and_lacks_questions():
    Path("tied.trec").write_text("0 Q0 1 1 1.00000001 t\n0 Q0 2 2 1 t\n2 Q0 4 1 1 t\n")
    mine, tied = evaluated(runs=("mine.trec", "tied.trec"), measures=("Success@1",)).runs
    assert mine.per_query["Success@1"] == {"0": 0, "1": 1, "2": 0, "3": 0}
    assert tied.per_query["Success@1"] == {"0": 0, "1": 0, "2": 1, "3": 0}  # "2" before "1"
    assert tied.ties == {"0": 1}
    assert tied.missing == ("1", "3")
    (incomplete,) = evaluated(runs=("tied.trec",), measures=("Success@1",), complete=False).runs
    assert incomplete.per_query["Success@1"] == {"0": 0, "2": 1}


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


PYSERINI = """
import json, sys
from pyserini.eval.evaluate_dpr_retrieval import evaluate_retrieval
questions = json.load(open(sys.argv[1]))
evaluate_retrieval(sys.argv[1], [1, 5, 20, 100])
for question in questions.values():
    for context in question["contexts"]:
        del context["has_answer"]
json.dump(questions, open("unmatched.json", "w"))
evaluate_retrieval("unmatched.json", [1, 5, 20, 100])
"""


@pytest.mark.peer
@pytest.mark.slow
def test_accuracies_are_pyserinis(shared_data, tmp_path):
    """Pyserini counts our `has_answer`, and then looks for the answers itself."""
    folder = shared_data / "nq-qed"
    grades = read_qrels_map(str(folder / "qrels" / "dev.tsv"))
    answers = {}
    for question in read_questions(str(folder / "answers.jsonl.gz")):
        answers[question.qid] = question.answers
    dev_queries = [query for query in read_queries(str(folder)) if query.qid in grades][:600]
    assert len(dev_queries) > 2 * BATCH
    questions = tmp_path / "dev.qa.csv"
    answered_queries = [query._replace(answers=answers[query.qid]) for query in dev_queries]
    write_queries(questions, answered_queries, TopicsFormat.DPR)
    run = tmp_path / "run.trec"
    index(type="bm25", corpus=folder, output=tmp_path / "bm25")
    search(index=tmp_path / "bm25", topics=questions, output=run, hits=100)
    contexts = tmp_path / "run.json"
    settings = EvalSettings(topk=(1, 5, 20, 100), write_pyserini_json=str(contexts))
    (result,) = evaluate_answers([str(run)], str(questions), str(folder), settings).runs
    summary = result.summary
    expected = [f"Top{k}\taccuracy: {summary[f'Success@{k}']:.4f}" for k in (1, 5, 20, 100)]
    output = run_pyserini(PYSERINI, contexts, folder=tmp_path)
    assert output.splitlines() == expected + expected
    assert 0.2 < summary["Success@1"] < summary["Success@100"] < 1
