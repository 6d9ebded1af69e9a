import random

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
from denserk.models.text_encoder import TextEncoder
from denserk.records import Candidate, Passage, Query, TrainingExample
from denserk.tasks.convert import convert
from denserk.tasks.mine_negatives import mine_negatives
from denserk.tasks.teacher_scores import with_teacher_scores
from tests.support.mining import RUN, ids, negatives, run_text
from tests.support.sentence_transformers_folders import PROMPTS, write_folder
from tests.support.toy import PASSAGES, QRELS, QUERIES
from tests.support.training_examples import inline, jsonl

EXPECTED = {"q1": ["d10", "d1", "d2"], "q2": ["d2", "d4", "d3"], "q3": ["d5", "d3"]}


def test_from_topics_and_judgments(mine):
    result, examples = mine()
    assert list(examples) == ["q1", "q2", "q3"]  # the order of the queries, not of the run
    assert negatives(examples) == EXPECTED
    for qid, example in examples.items():
        assert example.query == QUERIES[qid]
        assert set(ids(example.positives)) == set(QRELS[qid])
        for candidate in (*example.positives, *example.negatives):
            assert (candidate.title, candidate.text) == PASSAGES[candidate.docid]
        docids_by_rank = list(RUN[qid])
        for candidate in example.negatives:
            assert candidate.score == RUN[qid][candidate.docid]
            rank = docids_by_rank.index(candidate.docid) + 1
            assert candidate.extra == {"rank": rank, "run": "run.trec"}
    assert result.queries == 3
    assert result.negatives == 8
    assert result.short == 3
    assert result.dropped["positives"] == 4


def test_a_judgment_that_is_repeated_is_one_positive(mine, toy):
    _, examples = mine()
    qrels = toy / "qrels.txt"
    qrels.write_text(qrels.read_text() * 2)
    _, examples_of_repeated = mine()
    assert examples_of_repeated == examples


PASSAGE_RUN = {
    "q1": {"d1#0": 9.0, "d2#1": 8.0, "d3#1": 7.0, "d3#0": 6.0},
    "q2": {"d4#0": 5.0, "d5#0": 4.0, "d5#1": 3.0},
    "q3": {"d1#0": 2.0},
}


@pytest.fixture
def passages(toy):
    """Passages of documents, and a run of them."""
    passages = []
    for document in range(1, 6):
        for part in range(2):
            text = f"part {part} of {document}"
            passages.append({"_id": f"d{document}#{part}", "text": text})
    jsonl(toy / "passages.jsonl", passages)
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
    assert positives(examples) == {"q1": ["d3#1"], "q2": ["d5#0"]}
    assert [candidate.text for candidate in examples["q1"].positives] == ["part 1 of 3"]
    assert negatives(examples) == {"q1": ["d1#0", "d2#1"], "q2": ["d4#0"]}
    assert result.left_out["relevant documents without a hit"] == 2  # d5 of q1, d2 of q3
    assert result.left_out["queries whose relevant documents have no hit"] == 1


def test_the_first_run_that_has_a_document_says_which_passage_is_its_best(mine, passages, toy):
    (toy / "first.trec").write_text(run_text({"q1": {"d1#0": 4.0, "d5#1": 3.0}}))
    settings = MiningSettings(max_passage=True, num_negatives=10, skip_missing=True)
    _, examples = mine(settings, **{**passages, "run": ("first.trec", "passages.trec")})
    assert ids(examples["q1"].positives) == ["d3#1", "d5#1"]


def test_a_margin_compares_with_the_best_passage(mine, passages, toy):
    run = {"q1": {**PASSAGE_RUN["q1"], "d4#0": 6.5}}
    (toy / "passages.trec").write_text(run_text(run))
    settings = MiningSettings(
        max_passage=True, num_negatives=10, absolute_margin=0.0, skip_missing=True
    )
    _, examples = mine(settings, **passages)
    assert negatives(examples) == {"q1": ["d4#0"]}


def test_judged_documents_are_excluded_beside_training_data(mine, passages, toy):
    (toy / "train.tsv").write_text("q1\td2#1\td1#0\n")
    settings = MiningSettings(max_passage=True, num_negatives=10)
    triples = {"train": "train.tsv", "train_format": TrainingFormat.TRIPLES}
    _, examples = mine(settings, **passages, **triples)
    assert ids(examples["q1"].positives) == ["d2#1"]
    assert negatives(examples) == {"q1": ["d1#0"]}  # d3 is judged relevant


def test_passages_of_judged_documents_need_the_option(mine, passages):
    """Without it, the passages that answer a query would become its negatives."""
    with pytest.raises(MismatchError, match="judgments are of documents") as error:
        mine(**passages)
    assert "--max-passage" in str(error.value.hint)
    without_texts = {**passages, "corpus": None, "output_format": TrainingFormat.TEVATRON_IDS}
    with pytest.raises(MismatchError, match="judgments are of documents"):
        mine(**without_texts)


def test_another_delimiter_than_that_of_the_passages_is_one_error(mine, passages):
    settings = MiningSettings(max_passage=True, max_passage_delimiter="::")
    with pytest.raises(MismatchError, match="no hit is a passage of a relevant document") as error:
        mine(settings, **passages)
    assert "max-passage-delimiter" in str(error.value.hint)


def test_the_manifest_records_inputs_and_dropped_hits(mine, caplog):
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
    rows = []
    for qid, query in QUERIES.items():
        for docid in QRELS[qid]:
            title, text = PASSAGES[docid]
            positive = {"docid": docid, "title": title, "text": text}
            negative = {"docid": "d2", "title": "", "text": "of another time"}
            rows.append(
                {
                    "query_id": qid,
                    "query": query,
                    "positive_passages": [positive],
                    "negative_passages": [negative],
                }
            )
    jsonl(toy / "train.jsonl", rows * 2)
    result, examples = mine(train="train.jsonl", topics=None, qrels=None)
    assert negatives(examples) == EXPECTED
    for qid, example in examples.items():
        assert ids(example.positives) == list(QRELS[qid])
        for positive in example.positives:
            assert positive.text == PASSAGES[positive.docid][1]
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
    sources = []
    for candidate in examples["q1"].negatives:
        sources.append((candidate.docid, candidate.extra["rank"], candidate.extra["run"]))
    assert sources == [
        ("d4", 1, "other.trec"),
        ("d10", 2, "run.trec"),
        ("d1", 2, "other.trec"),
        ("d5", 3, "other.trec"),
        ("d2", 4, "run.trec"),
    ]
    assert result.dropped["in several runs"] == 1
    assert negatives(examples)["q2"] == EXPECTED["q2"]


@pytest.fixture
def answers(toy):
    answers_of_queries = {"q1": ["Fish", "money"], "q2": ["cat"], "q3": ["submarine"]}
    questions = []
    for qid, strings in answers_of_queries.items():
        questions.append({"_id": qid, "question": QUERIES[qid], "answers": strings})
    return jsonl(toy / "answers.jsonl", questions)


def positives(examples):
    return {qid: ids(example.positives) for qid, example in examples.items()}


def test_passages_with_an_answer_become_positives(mine, answers):
    settings = MiningSettings(num_negatives=9, answer_bearing=AnswerBearing.PROMOTE)
    result, examples = mine(settings, answers=answers)
    assert positives(examples) == {
        "q1": ["d3", "d10", "d2"],
        "q2": ["d1", "d5", "d3"],
        "q3": ["d4"],
    }
    assert negatives(examples) == {"q1": ["d1"], "q2": ["d2", "d4"], "q3": ["d5", "d3"]}
    assert examples["q1"].positives[1].extra == {"rank": 2, "run": "run.trec"}
    assert result.promoted == 3


def test_promoted_passages_stand_in_for_the_positives_on_request(mine, answers):
    settings = MiningSettings(answer_bearing=AnswerBearing.PROMOTE, keep_gold=False)
    result, examples = mine(settings, answers=answers)
    assert positives(examples) == {"q1": ["d10", "d2"], "q2": ["d3"]}
    assert result.left_out["queries without a positive left"] == 1


def test_hits_that_repeat_a_positive_are_dropped_on_request(mine, toy):
    texts = {docid: text for docid, (_, text) in PASSAGES.items()}
    texts["d3"] = "money"  # the positive of q1
    texts["d10"] = "Here: money."
    jsonl(toy / "alike.jsonl", ({"_id": docid, "text": text} for docid, text in texts.items()))
    result, examples = mine(MiningSettings(drop_literal=True), corpus="alike.jsonl")
    assert ids(examples["q1"].negatives) == ["d1"]
    assert result.dropped["literal"] == 2


def test_a_teachers_scores_stand_in_for_the_runs(mine, tiny_reranker):
    model = str(tiny_reranker())
    _, examples = mine(MiningSettings(num_negatives=9, teacher=model))
    teacher = PairScorer(model, compute=CPU)
    for qid, example in examples.items():
        for candidate in (*example.positives, *example.negatives):
            title, text = PASSAGES[candidate.docid]
            passage = Passage(candidate.docid, text, title)
            [score] = teacher.score([Query(qid, QUERIES[qid])], [passage])
            assert candidate.score == pytest.approx(float(score), abs=1e-6)
        for candidate in example.negatives:
            assert candidate.extra["run_score"] == RUN[qid][candidate.docid]
        assert all("run_score" not in candidate.extra for candidate in example.positives)

    _, guarded = mine(MiningSettings(num_negatives=9, teacher=model, absolute_margin=0.0))
    expected = {}
    for qid, example in examples.items():
        limit = max(candidate.score for candidate in example.positives)
        below_limit = [passage.docid for passage in example.negatives if passage.score <= limit]
        if below_limit:
            expected[qid] = below_limit
    assert negatives(guarded) == expected


@pytest.mark.parametrize("metric", ["inner", "l2"])
def test_an_encoder_is_a_teacher(mine, tiny, metric, tmp_path):
    model = tiny()
    if metric == "l2":
        names = {"similarity_fn_name": "euclidean"}
        modules = ("Transformer", "Pooling")
        model = write_folder(tiny(), tmp_path / "model", modules=modules, **{PROMPTS: names})
    _, examples = mine(MiningSettings(num_negatives=9, teacher=str(model)))
    encoder = TextEncoder(str(model), compute=CPU)
    for qid, example in examples.items():
        [query] = encoder.encode_queries([Query(qid, QUERIES[qid])])
        for candidate in (*example.positives, *example.negatives):
            title, text = PASSAGES[candidate.docid]
            [passage] = encoder.encode_passages([Passage(candidate.docid, text, title)])
            expected = sum(query * passage)
            if metric == "l2":
                expected = -sum((query - passage) ** 2)
            assert candidate.score == pytest.approx(float(expected), rel=1e-4)


class RandomCollection:
    """A corpus whose passages hold answers, with runs for 12 queries and their positives."""

    def __init__(self, folder, seed):
        self.folder = folder
        self.generator = random.Random(seed)
        docids = [f"d{number}" for number in range(40)]
        self.queries_answered = {}  # by passage
        passages = []
        for docid in docids:
            numbers = self.generator.sample(range(12), 3)
            self.queries_answered[docid] = {f"q{number}" for number in numbers}
            text = " ".join(f"Answer{number}!" for number in numbers)
            passages.append({"_id": docid, "text": text})
        self.positives = {}
        rows = []
        for number in range(12):
            positives = self.generator.sample(docids, 2)
            self.positives[f"q{number}"] = positives
            rows.append(
                {
                    "query_id": f"q{number}",
                    "query": f"question {number}",
                    "answers": [f"answer{number}"],
                    "positive_passages": [{"docid": docid, "text": docid} for docid in positives],
                    "negative_passages": [],
                }
            )
        jsonl(folder / "corpus.jsonl", passages)
        jsonl(folder / "train.jsonl", rows)
        self.runs = [self.random_run(docids), self.random_run(docids)]

    def random_run(self, docids):
        run = {}
        for qid in self.positives:
            hits = self.generator.sample(docids, 20)
            run[qid] = {docid: self.generator.randint(0, 9) for docid in hits}
        return run

    def write_shuffled_runs(self):
        """Write the runs with their queries, and the hits of each query, in a new order."""
        for number, run in enumerate(self.runs):
            shuffled = {}
            for qid in self.generator.sample(list(run), len(run)):
                hits = list(run[qid].items())
                shuffled[qid] = dict(self.generator.sample(hits, len(hits)))
            (self.folder / f"run{number}.trec").write_text(run_text(shuffled))

    def mine(self, run_count, seed, shard=0, shards=1):
        """Mine negatives from some of the runs; return the bytes of the training data."""
        output = self.folder / "output.jsonl"
        paths = MiningPaths(
            train=str(self.folder / "train.jsonl"),
            corpus=str(self.folder / "corpus.jsonl"),
            run=tuple(str(self.folder / f"run{number}.trec") for number in range(run_count)),
            output=str(output),
        )
        settings = MiningSettings(
            num_negatives=4,
            answer_bearing=AnswerBearing.DROP,
            seed=seed,
            shard_id=shard,
            shard_num=shards,
        )
        mine_negatives(paths, settings)
        return output.read_bytes()


@budget(max_examples=15)
@given(seed=st.integers(0, 10**6), run_count=st.integers(1, 2), shards=st.integers(1, 5))
def test_laws(seed, run_count, shards, tmp_path_factory):
    """Positives and passages with answers stay out; order of the run and shards change nothing."""
    collection = RandomCollection(tmp_path_factory.mktemp("collection"), seed)
    collection.write_shuffled_runs()
    of_shards = [collection.mine(run_count, seed, shard, shards) for shard in range(shards)]
    collection.write_shuffled_runs()
    whole = collection.mine(run_count, seed)
    assert b"".join(of_shards) == whole
    for example in read_training(str(collection.folder / "output.jsonl")):
        for docid in ids(example.negatives):
            assert docid not in collection.positives[example.qid]
            assert example.qid not in collection.queries_answered[docid]


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
def test_faults_are_errors_or_counted(fault, mine, toy):
    files, message, expected_counts, remaining_queries = FAULTS[fault]
    for name, text in files.items():
        (toy / name).write_text(text)
    with pytest.raises(InputError) as error:
        mine()
    assert str(error.value).startswith(message)
    assert not (toy / "mined.jsonl").exists()
    result, examples = mine(MiningSettings(num_negatives=9, skip_missing=True))
    counts = result.left_out + result.noticed + result.dropped
    for reason, count in expected_counts.items():
        assert counts[reason] == count
    assert list(examples) == remaining_queries


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
    with pytest.raises(InputError) as error:
        mine(MiningSettings(skip_missing=True))
    assert str(error.value).startswith(message)
    assert (toy / "mined.jsonl").read_bytes() == before
    assert beside(toy / "mined.jsonl").exists()


def test_no_negatives_are_no_training_data(mine, toy):
    (toy / "run.trec").write_text("q1 Q0 d3 1 1 t\n")
    with pytest.raises(MismatchError, match="no query has a negative left"):
        mine(MiningSettings(skip_missing=True))
    assert not (toy / "mined.jsonl").exists()


CPU = ComputeSettings(device="cpu")


def example(query, positive, *negatives):
    return TrainingExample(
        "1",
        query,
        (Candidate(f"1-{positive}", positive, score=7.0),),
        tuple(Candidate(f"1-{negative}", negative, score=7.0) for negative in negatives),
    )


def broken_teacher(queries, passages):
    return np.array([1, np.nan], dtype=np.float32)


@pytest.mark.parametrize(
    ("unscored", "message", "hint"),
    [
        (example("", "c"), "query 1 without its text", "--queries"),
        (example("q", "c", ""), "passage 1- of query 1 without its text", "--corpus"),
        (example("q", "c", "d"), "the score nan for passage 1-d of query 1", "broken"),
    ],
)
def test_what_a_teacher_cannot_score(unscored, message, hint):
    with pytest.raises(InputError, match=message) as error:
        list(with_teacher_scores([unscored], broken_teacher, "train"))
    assert hint in str(error.value.hint)


@pytest.mark.parametrize("training_format", ["tevatron", "flag"])
def test_convert_writes_a_cross_encoder_s_scores(tmp_path, tiny_reranker, training_format):
    train = jsonl(tmp_path / "train.jsonl", [inline(1, 1, 2), inline(2, 2, 1)])
    target = tmp_path / "scored.json"
    model = str(tiny_reranker())
    settings = ConversionSettings(to_format=training_format, teacher=model)
    assert convert(train, str(target), settings, ModelOptions(compute=CPU)).count == 2
    scorer = PairScorer(model, compute=CPU)
    for scored_example in read_training(target, TrainingFormat(training_format)):
        candidates = (*scored_example.positives, *scored_example.negatives)
        query = Query(scored_example.qid, scored_example.query)
        passages = [Passage(candidate.docid, candidate.text) for candidate in candidates]
        expected = scorer.score([query] * len(passages), passages)
        for candidate, score in zip(candidates, expected.tolist(), strict=True):
            assert candidate.score == pytest.approx(score, abs=1e-6)
