import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

from denserk.config.encoding import ComputeSettings, ModelOptions
from denserk.config.formats import ConversionSettings, TrainingFormat
from denserk.config.mining import AnswerBearing, MiningPaths, MiningSettings
from denserk.errors import InputError, MismatchError
from denserk.io.manifest import Kind, beside, file_sha256, read_manifest
from denserk.io.training import read_training
from denserk.models.cross_encoder import PairScorer
from denserk.records import Candidate, Passage, Query, TrainingExample
from denserk.tasks.convert import convert
from denserk.tasks.mine_negatives import mine_negatives, scored
from tests.support.mining import RUN, ids, negatives, run_text
from tests.support.toy import PASSAGES, QRELS, QUERIES
from tests.support.training_examples import inline, jsonl

EXPECTED = {"q1": ["d10", "d1", "d2"], "q2": ["d2", "d4", "d3"], "q3": ["d5", "d3"]}


def test_from_topics_and_judgments(mine):
    result, examples = mine()
    assert list(examples) == ["q1", "q2", "q3"]  # the order of the queries, not of the run
    assert negatives(examples) == EXPECTED
    assert {q: set(ids(e.positives)) for q, e in examples.items()} == {
        q: set(j) for q, j in QRELS.items()
    }
    for qid, example in examples.items():
        assert example.query == QUERIES[qid]
        for candidate in (*example.positives, *example.negatives):
            assert (candidate.title, candidate.text) == PASSAGES[candidate.docid]
        for candidate in example.negatives:
            ranks = list(RUN[qid])
            source = {"rank": ranks.index(candidate.docid) + 1, "run": "run.trec"}
            assert (candidate.score, candidate.extra) == (RUN[qid][candidate.docid], source)
    assert (result.queries, result.negatives, result.short) == (3, 8, 3)
    assert result.dropped["positives"] == 4


def test_a_judgment_that_is_repeated_is_one_positive(mine, toy):
    _, once = mine()
    lines = (toy / "qrels.txt").read_text().splitlines(keepends=True)
    (toy / "qrels.txt").write_text("".join(line for line in lines for _ in range(2)))
    _, twice = mine()
    assert twice == once


PASSAGE_RUN = {
    "q1": {"d1#0": 9.0, "d2#1": 8.0, "d3#1": 7.0, "d3#0": 6.0},
    "q2": {"d4#0": 5.0, "d5#0": 4.0, "d5#1": 3.0},
    "q3": {"d1#0": 2.0},
}


@pytest.fixture
def passages(toy):
    """Passages of documents, and a run of them."""
    corpus = "".join(
        f'{{"_id": "d{document}#{part}", "text": "part {part} of {document}"}}\n'
        for document in range(1, 6)
        for part in range(2)
    )
    (toy / "passages.jsonl").write_text(corpus)
    (toy / "documents.txt").write_text("q1 0 d3 1\nq1 0 d5 1\nq2 0 d5 1\nq3 0 d2 1\n")
    (toy / "passages.trec").write_text(run_text(PASSAGE_RUN))
    return {
        "corpus": "passages.jsonl",
        "qrels": "documents.txt",
        "run": ("passages.trec",),
    }


def test_judgments_of_documents_make_their_best_passages_positives(mine, passages, caplog):
    settings = MiningSettings(max_passage=True, num_negatives=10)
    result, examples = mine(settings, **passages)
    positives = {qid: ids(example.positives) for qid, example in examples.items()}
    assert positives == {"q1": ["d3#1"], "q2": ["d5#0"]}
    assert [candidate.text for candidate in examples["q1"].positives] == ["part 1 of 3"]
    assert negatives(examples) == {"q1": ["d1#0", "d2#1"], "q2": ["d4#0"]}
    assert result.left_out["relevant documents without a hit"] == 2  # d5 of q1, d2 of q3
    assert result.left_out["queries whose relevant documents have no hit"] == 1


def test_the_first_run_that_has_a_document_says_which_passage_is_its_best(mine, passages, toy):
    (toy / "first.trec").write_text("q1 Q0 d1#0 1 4.0 made\nq1 Q0 d5#1 2 3.0 made\n")
    settings = MiningSettings(max_passage=True, num_negatives=10, skip_missing=True)
    _, examples = mine(settings, **{**passages, "run": ("first.trec", "passages.trec")})
    assert ids(examples["q1"].positives) == ["d3#1", "d5#1"]


def test_a_margin_compares_with_the_best_passage(mine, passages, toy):
    lower = {"q1": {**PASSAGE_RUN["q1"], "d4#0": 6.5}}
    (toy / "passages.trec").write_text(run_text(lower))
    settings = MiningSettings(
        max_passage=True, num_negatives=10, absolute_margin=0.0, skip_missing=True
    )
    _, examples = mine(settings, **passages)
    assert negatives(examples) == {"q1": ["d4#0"]}


def test_judged_documents_are_excluded_beside_training_data(mine, passages, toy):
    (toy / "train.tsv").write_text("q1\td2#1\td1#0\n")
    settings = MiningSettings(max_passage=True, num_negatives=10)
    given = {**passages, "train": "train.tsv", "train_format": TrainingFormat.TRIPLES}
    _, examples = mine(settings, **given)
    assert ids(examples["q1"].positives) == ["d2#1"]
    assert negatives(examples) == {"q1": ["d1#0"]}  # d3 is judged relevant


def test_passages_of_judged_documents_need_the_option(mine, passages):
    """Without it, the passages that answer a query would become its negatives."""
    without_texts = {**passages, "corpus": None, "output_format": TrainingFormat.TEVATRON_IDS}
    for options in (passages, without_texts):
        with pytest.raises(MismatchError, match="judgments are of documents") as error:
            mine(MiningSettings(num_negatives=10), **options)
        assert "--max-passage" in str(error.value.hint)


def test_another_delimiter_than_that_of_the_passages_is_one_error(mine, passages):
    settings = MiningSettings(max_passage=True, max_passage_delimiter="::")
    with pytest.raises(MismatchError, match="no hit is a passage of a relevant document") as error:
        mine(settings, **passages)
    assert "max-passage-delimiter" in str(error.value.hint)


def test_the_manifest_says_what_it_was_made_from_and_what_fell(mine, caplog):
    mine(MiningSettings(num_negatives=2, max_score=7.5))
    manifest = read_manifest("mined.jsonl", Kind.TRAINING)
    assert manifest.made_from["runs"] == [{"name": "run.trec", "sha256": file_sha256("run.trec")}]
    assert manifest.made_from["qrels"]["name"] == "qrels.txt"
    assert manifest.settings["max_score"] == 7.5
    assert manifest.contents["dropped"] == {"positives": 4, "max-score": 1}
    assert manifest.contents["sha256"] == file_sha256("mined.jsonl")
    assert "hits dropped: positives: 4, max-score: 1" in caplog.messages


def test_texts_of_queries_known_by_id_and_judgments_beside_training_data(mine, toy):
    (toy / "train.tsv").write_text("q1\td3\td1\nq2\td1\td9\n")
    _, examples = mine(train="train.tsv", train_format=TrainingFormat.TRIPLES)
    assert negatives(examples) == {"q1": EXPECTED["q1"], "q2": EXPECTED["q2"]}
    assert examples["q2"].query == QUERIES["q2"]
    assert ids(examples["q2"].positives) == ["d1"]  # d5 is judged relevant, and so no negative


def test_from_training_data_whose_rows_of_one_query_become_one(mine, toy):
    titled = {
        d: {"docid": d, "title": title, "text": text} for d, (title, text) in PASSAGES.items()
    }
    old = [{"docid": "d2", "title": "", "text": "of another time"}]
    halves = [
        {"query_id": q, "query": text, "positive_passages": [titled[d]], "negative_passages": old}
        for q, text in QUERIES.items()
        for d in QRELS[q]
    ]
    jsonl(toy / "train.jsonl", halves * 2)
    result, examples = mine(train="train.jsonl", topics=None, qrels=None)
    assert negatives(examples) == EXPECTED
    assert [ids(each.positives) for each in examples.values()] == [[*QRELS[q]] for q in QUERIES]
    assert [c.text for c in examples["q2"].positives] == [PASSAGES[d][1] for d in QRELS["q2"]]
    assert result.left_out.total() == 0


def test_positives_without_ids_are_known_by_their_text(mine, toy):
    lines = [{"query": QUERIES["q1"], "pos": ["The cat  sleeps in the house"], "neg": []}]
    jsonl(toy / "train.jsonl", lines)
    (toy / "run.trec").write_text(run_text({"0": RUN["q1"]}))
    result, examples = mine(train="train.jsonl", topics=None, qrels=None)
    assert negatives(examples) == {"0": EXPECTED["q1"]}
    assert result.dropped["positives"] == 1


def test_several_runs_are_merged_by_rank(mine, toy):
    (toy / "other.trec").write_text(run_text({"q1": {"d4": 0.5, "d1": 0.4, "d5": 0.3}}))
    result, examples = mine(run=("run.trec", "other.trec"))
    assert [(c.docid, c.extra["rank"], c.extra["run"]) for c in examples["q1"].negatives] == [
        ("d4", 1, "other.trec"),
        ("d10", 2, "run.trec"),
        ("d1", 2, "other.trec"),
        ("d5", 3, "other.trec"),
        ("d2", 4, "run.trec"),
    ]
    assert result.dropped["in several runs"] == 1
    assert negatives(examples)["q2"] == EXPECTED["q2"]


def answers(toy):
    found = {"q1": ["Fish", "money"], "q2": ["cat"], "q3": ["submarine"]}
    lines = [{"_id": qid, "question": QUERIES[qid], "answers": a} for qid, a in found.items()]
    return jsonl(toy / "answers.jsonl", lines)


def test_passages_with_an_answer_become_positives(mine, toy):
    settings = MiningSettings(num_negatives=9, answer_bearing=AnswerBearing.PROMOTE)
    result, examples = mine(settings, answers=answers(toy))
    assert [ids(example.positives) for example in examples.values()] == [
        ["d3", "d10", "d2"],
        ["d1", "d5", "d3"],
        ["d4"],
    ]
    assert negatives(examples) == {"q1": ["d1"], "q2": ["d2", "d4"], "q3": ["d5", "d3"]}
    assert examples["q1"].positives[1].extra == {"rank": 2, "run": "run.trec"}
    assert result.promoted == 3
    settings = MiningSettings(answer_bearing=AnswerBearing.PROMOTE, keep_gold=False)
    result, examples = mine(settings, answers=answers(toy))
    assert {q: ids(e.positives) for q, e in examples.items()} == {"q1": ["d10", "d2"], "q2": ["d3"]}
    assert result.left_out["queries without a positive left"] == 1


def test_likeness_to_a_positive(mine, toy):
    alike = {docid: text for docid, (_, text) in PASSAGES.items()} | {"d10": "Here: money."}
    alike["d3"] = "money"
    jsonl(toy / "alike.jsonl", ({"_id": docid, "text": text} for docid, text in alike.items()))
    result, examples = mine(MiningSettings(drop_literal=True), corpus="alike.jsonl")
    assert ids(examples["q1"].negatives) == ["d1"]
    assert result.dropped["literal"] == 2


def test_a_teachers_scores_stand_in_for_the_runs(mine, tiny_reranker):
    model = str(tiny_reranker())
    _, every = mine(MiningSettings(num_negatives=9, teacher=model))
    teacher = PairScorer(model, compute=CPU)
    limits = {}
    for qid, example in every.items():
        for candidate in (*example.positives, *example.negatives):
            title, text = PASSAGES[candidate.docid]
            passage = Passage(candidate.docid, text, title)
            [score] = teacher.score([Query(qid, QUERIES[qid])], [passage])
            assert candidate.score == pytest.approx(float(score), abs=1e-6)
        for candidate in example.negatives:
            assert candidate.extra["run_score"] == RUN[qid][candidate.docid]
        assert all("run_score" not in candidate.extra for candidate in example.positives)
        limits[qid] = max(candidate.score for candidate in example.positives)
    _, guarded = mine(MiningSettings(num_negatives=9, teacher=model, absolute_margin=0.0))
    for qid, example in every.items():
        passed = [c.docid for c in example.negatives if c.score <= limits[qid]]
        assert passed == (ids(guarded[qid].negatives) if qid in guarded else [])


def world(draw, folder):
    """A corpus whose passages say whose answer they hold, and training data of 12 queries."""
    docids = [f"d{number}" for number in range(40)]
    holds = {docid: draw.sample(range(12), 3) for docid in docids}
    corpus = ({"_id": d, "text": " ".join(f"Answer{n}!" for n in holds[d])} for d in docids)
    positives = {f"q{number}": draw.sample(docids, 2) for number in range(12)}
    train = (
        {
            "query_id": qid,
            "query": f"question {qid}",
            "answers": [f"answer{qid[1:]}"],
            "positive_passages": [{"docid": d, "text": d} for d in found],
            "negative_passages": [],
        }
        for qid, found in positives.items()
    )
    jsonl(folder / "corpus.jsonl", corpus)
    jsonl(folder / "train.jsonl", train)
    runs = [
        {qid: {d: draw.randint(0, 9) for d in draw.sample(docids, 20)} for qid in positives}
        for _ in range(2)
    ]
    return positives, holds, runs


@budget(max_examples=15)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 2), parts=st.integers(1, 5))
def test_laws(seed, count, parts, tmp_path_factory):
    """Positives and passages with answers stay out; order of the run and parts change nothing."""
    folder, draw = tmp_path_factory.mktemp("world"), random.Random(seed)
    positives, holds, runs = world(draw, folder)
    asked: dict[str, Any] = {"num_negatives": 4, "answer_bearing": AnswerBearing.DROP}

    def mined(part=0, of=1):
        paths: dict[str, Any] = {
            name: str(folder / f"{name}.jsonl") for name in ("train", "corpus", "output")
        }
        paths["run"] = tuple(str(folder / f"run{number}.trec") for number in range(count))
        settings = MiningSettings(**asked, seed=seed, shard_id=part, shard_num=of)
        mine_negatives(MiningPaths(**paths), settings)
        return (folder / "output.jsonl").read_bytes()

    outputs = set()
    for _ in range(2):
        for number, run in enumerate(runs[:count]):
            order = draw.sample([*run], 12)
            shuffled = {qid: dict(draw.sample([*run[qid].items()], 20)) for qid in order}
            (folder / f"run{number}.trec").write_text(run_text(shuffled))
        outputs |= {b"".join(mined(part, parts) for part in range(parts)), mined()}
    assert len(outputs) == 1
    for example in read_training(str(folder / "output.jsonl")):
        for docid in ids(example.negatives):
            assert docid not in positives[example.qid]
            assert int(example.qid[1:]) not in holds[docid]


FAULTS = {
    "a query without hits": (
        {"run.trec": run_text({"q1": RUN["q1"], "q2": RUN["q2"]})},
        "run.trec: found no hits for 1 of 3 queries ('q3'); expected hits for every query",
        {"queries without hits": 1},
        ["q1", "q2"],
    ),
    "a passage that the corpus lacks": (
        {"run.trec": run_text({**RUN, "q1": {"d10": 3.0, "d77": 2.0}})},
        "corpus.jsonl: found no passages with 1 of the ids that runs and training data name ('d77'",
        {"not in the corpus": 1},
        ["q1", "q2", "q3"],
    ),
    "a positive that the corpus lacks": (
        {"qrels.txt": "q1 0 d3 1\nq2 0 d88 1\nq3 0 d4 1\nq3 0 d99 1\n"},
        "corpus.jsonl: found no passages with 2 of the ids that runs and training data name "
        "('d88', 'd99')",
        {"positives that the corpus lacks": 2, "queries without a positive left": 1},
        ["q1", "q3"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_errors_of_a_line_or_counted(fault, mine, toy):
    files, message, counted, left = FAULTS[fault]
    for name, text in files.items():
        (toy / name).write_text(text)
    with pytest.raises(InputError) as refusal:
        mine()
    assert str(refusal.value).startswith(message)
    assert not (toy / "mined.jsonl").exists()
    result, examples = mine(MiningSettings(num_negatives=9, skip_missing=True))
    counts = result.left_out + result.noticed + result.dropped
    assert {reason: counts[reason] for reason in counted} == counted
    assert list(examples) == left


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.trec", "q9 Q0 d1 1 1 t\n", "run.trec: found none of the 3 queries; expected hits"),
        ("qrels.txt", "q1 0 d3 0\n", "qrels.txt: found no query with a positive"),
    ],
)
def test_nothing_to_mine_is_rejected(name, text, message, mine, toy):
    mine()
    before = (toy / "mined.jsonl").read_bytes()
    (toy / name).write_text(text)
    with pytest.raises(InputError) as refusal:
        mine(MiningSettings(skip_missing=True))
    assert str(refusal.value).startswith(message)
    assert (toy / "mined.jsonl").read_bytes() == before
    assert beside(toy / "mined.jsonl").exists()


def test_no_negatives_are_no_training_data(mine, toy):
    (toy / "run.trec").write_text("q1 Q0 d3 1 1 t\n")
    with pytest.raises(MismatchError, match="no query has a negative left"):
        mine(MiningSettings(skip_missing=True))
    assert not (toy / "mined.jsonl").exists()


CPU = ComputeSettings(device="cpu")


def example(query, *texts):
    positive, *negatives = (Candidate(f"1-{text}", text, score=7.0) for text in texts)
    return TrainingExample("1", query, (positive,), tuple(negatives))


@pytest.mark.parametrize(
    ("given", "words", "hint"),
    [
        (example("", "c"), "query 1 without its text", "--queries"),
        (example("q", "c", ""), "passage 1- of query 1 without its text", "--corpus"),
        (example("q", "c", "d"), "the score nan for passage 1-d of query 1", "broken"),
    ],
)
def test_what_a_teacher_cannot_score(given, words, hint):
    with pytest.raises(InputError, match=words) as refusal:
        list(scored([given], lambda *_: np.array([1, np.nan], dtype=np.float32), "train"))
    assert hint in str(refusal.value.hint)


@pytest.mark.parametrize("form", ["tevatron", "flag"])
def test_convert_writes_a_cross_encoder_s_scores(tmp_path, tiny_reranker, form):
    train = jsonl(tmp_path / "train.jsonl", [inline(1, 1, 2), inline(2, 2, 1)])
    target, model = tmp_path / "scored.json", str(tiny_reranker())
    settings = ConversionSettings(to_format=form, teacher=model)
    assert convert(train, str(target), settings, ModelOptions(compute=CPU)).count == 2
    scorer = PairScorer(model, compute=CPU)
    for found in read_training(target, TrainingFormat(form)):
        candidates = (*found.positives, *found.negatives)
        passages = [Passage(c.docid, c.text) for c in candidates]
        expected = scorer.score([Query(found.qid, found.query)] * 3, passages)
        got = [c.score for c in candidates if c.score is not None]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
