"""Causes of misses: each planted in the toy collection, with a tiny random model."""

import csv
import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import denserk
from denserk.commands.app import run as run_command_line
from denserk.commands.retrieve import encode, fuse, index, search
from denserk.config.analysis import MissesSettings
from denserk.config.encoding import ComputeSettings
from denserk.config.retrieval import FusionMethod, FusionSettings
from denserk.errors import InputError, MismatchError, UsageError
from denserk.evaluation.near_copies import NearCopies
from denserk.io.misses import COLUMNS, FOUND, MODEL, TITLES, MissedPassage, read_cause_counts
from denserk.models.cross_encoder import PairScorer
from denserk.records import Passage, Query
from denserk.tasks.analyze import miss_hits, miss_passages, miss_queries
from denserk.tasks.analyze.miss_causes import CAUSES
from denserk.tasks.analyze.miss_inputs import unsearched_fields
from denserk.tasks.analyze.miss_trials import Evidence, Miss, Trial
from denserk.tasks.analyze.misses import analyze_misses
from tests.benchmarks import miss_replays

CPU = ComputeSettings(device="cpu")
COMPUTE = {"device": "cpu"}


TEXTS = {
    "d1": "the cat sleeps in the old house",
    "d2": "The cat sleeps in the old house.",
    "d3": "the moon rises in the night",
    "copy": "the moon rises in the night!",
}


def evidence(hits, grades, k=2, texts=None, **options):
    """Evidence of hits by query: docids, the best first."""
    settings = MissesSettings(run="run", qrels="qrels", k=k, **options)
    scored = {
        qid: [(docid, float(-rank)) for rank, docid in enumerate(docids, start=1)]
        for qid, docids in hits.items()
    }
    passages = {docid: Passage(docid, text) for docid, text in (texts or {}).items()}
    return Evidence(settings, scored, grades, {}, passages)


def trial_of(change, *miss):
    """The only trial of a change."""
    (trial,) = change.try_change([Miss(*miss)])
    return trial


class TestChangesOfHits:
    def test_hubs_above_are_left_out(self):
        of_query = evidence({"q": ["hub", "d1", "d2"]}, {"q": {"d2": 1}})
        of_query.hubs = {"hub"}
        assert trial_of(miss_hits.WithoutHubs(of_query), "q", "d2", 1, 3).rank == 2

    def test_a_relevant_hub_stays(self):
        of_query = evidence({"q": ["hub", "d1", "d2"]}, {"q": {"d2": 1, "hub": 1}})
        of_query.hubs = {"hub"}
        assert trial_of(miss_hits.WithoutHubs(of_query), "q", "d2", 1, 3) is None

    def test_a_hub_that_is_missed_would_be_left_out_too(self):
        of_query = evidence({"q": ["hub", "d1", "d2"]}, {"q": {"d2": 1}})
        of_query.hubs = {"hub", "d2"}
        assert trial_of(miss_hits.WithoutHubs(of_query), "q", "d2", 1, 3) is None

    def test_a_passage_outside_the_run_has_no_hubs_above(self):
        of_query = evidence({"q": ["hub", "d1"]}, {"q": {"d2": 1}})
        of_query.hubs = {"hub"}
        assert trial_of(miss_hits.WithoutHubs(of_query), "q", "d2", 1, None) is None

    def copies(self, of_query):
        return NearCopies(of_query.texts, 0.7)

    def test_copies_of_another_hit_are_collapsed(self):
        of_query = evidence({"q": ["d1", "d2", "d3"]}, {"q": {"d3": 1}}, texts=TEXTS)
        trial = trial_of(miss_hits.WithoutCopies(of_query, self.copies(of_query)), "q", "d3", 1, 3)
        assert trial == Trial("collapse 1 copy", 2)

    def test_an_unjudged_copy_of_the_passage_is_a_missing_label(self):
        of_query = evidence({"q": ["copy", "d1", "d3"]}, {"q": {"d3": 1}}, texts=TEXTS)
        copies = self.copies(of_query)
        assert trial_of(miss_hits.WithoutCopies(of_query, copies), "q", "d3", 1, 3) is None
        trial = trial_of(miss_hits.CopiesJudged(of_query, copies), "q", "d3", 1, 3)
        assert trial == Trial("judge its copy copy", 1)

    def test_a_judged_copy_of_the_passage_is_collapsed_with_it(self):
        grades = {"q": {"d3": 1, "copy": 0}}
        of_query = evidence({"q": ["copy", "d1", "d3"]}, grades, texts=TEXTS)
        copies = self.copies(of_query)
        assert trial_of(miss_hits.WithoutCopies(of_query, copies), "q", "d3", 1, 3).rank == 1
        assert trial_of(miss_hits.CopiesJudged(of_query, copies), "q", "d3", 1, 3) is None

    def collapsed(self, hits, grades, k):
        """The hits of a query without copies, and the change."""
        of_query = evidence({"q": hits}, {"q": grades}, k=k, texts=TEXTS)
        change = miss_hits.WithoutCopies(of_query, self.copies(of_query))
        fix = change.change_all_queries()
        assert fix is not None
        return [docid for docid, _ in fix.hits["q"]], change

    def test_a_relevant_passage_stays_in_place_of_a_judged_copy(self):
        hits = ["copy", "d1", "d2", "d3"]
        collapsed, change = self.collapsed(hits, {"d3": 1, "copy": 0}, k=3)
        assert collapsed == ["d3", "d1"]
        assert trial_of(change, "q", "d3", 1, 4).rank == 1

    def test_an_unjudged_copy_of_a_relevant_passage_stays_beside_it(self):
        collapsed, change = self.collapsed(["copy", "d1", "d2", "d3"], {"d3": 1}, k=3)
        assert collapsed == ["copy", "d1", "d3"]
        assert trial_of(change, "q", "d3", 1, 4).rank == 3

    def test_of_relevant_copies_each_stays(self):
        collapsed, _ = self.collapsed(["copy", "d1", "d2", "d3"], {"d3": 1, "copy": 1}, k=3)
        assert collapsed == ["copy", "d1", "d3"]

    def test_hits_below_those_that_are_collapsed_stay(self):
        collapsed, _ = self.collapsed(["d1", "d2", "d3", "copy", "far"], {"far": 1}, k=2)
        assert collapsed == ["d1", "d3", "copy", "far"]

    def test_completed_judgments_have_the_grades_of_the_originals(self):
        of_query = evidence({"q": ["copy", "d1", "d3"]}, {"q": {"d3": 2}}, texts=TEXTS)
        fix = miss_hits.CopiesJudged(of_query, self.copies(of_query)).change_all_queries()
        assert fix is not None
        assert fix.grades == {"q": {"d3": 2, "copy": 2}}

    def test_the_smallest_change_of_the_weight_comes_first(self):
        of_query = evidence({"q": ["d1", "d2", "d3"]}, {"q": {"d3": 1}}, k=1)
        fusion = FusionSettings(method=FusionMethod.LINEAR)
        runs = {"q": ([("d1", 3.0), ("d2", 2.0), ("d3", 1.0)], [("d3", 9.0), ("d1", 1.0)])}
        change = miss_queries.WeightOfWords(of_query, runs, fusion, current_weight=0.0)
        assert trial_of(change, "q", "d3", 1, 3) == Trial("fuse with weight 0.5 of BM25", 1)
        assert trial_of(change, "q", "absent", 1, None) is None
        assert [docid for docid, _ in change.hits_with(0.5)["q"]] == ["d3", "d1", "d2"]


def lines_of(path):
    """The lines of a file, with their ends."""
    return Path(path).read_text().splitlines(keepends=True)


def write_qrels(path, grades):
    path.write_text("".join(f"{q} 0 {d} {g}\n" for (q, d), g in grades.items()))
    return str(path)


@pytest.fixture
def folder(toy, tiny, monkeypatch):
    """The toy collection, encoded and searched: vectors, run.trec, bm25, bm25.trec."""
    monkeypatch.chdir(toy)
    encode(model=tiny(), corpus="corpus.jsonl", output="vectors", passage_max_length=16, **COMPUTE)
    search(index="vectors", topics="queries.tsv", output="run.trec")
    index(type="bm25", corpus="corpus.jsonl", output="bm25")
    search(index="bm25", topics="queries.tsv", output="bm25.trec")
    return toy


def ranked(run, qid):
    """The passages of a query in a run, the best first."""
    lines = [line.split() for line in Path(run).read_text().splitlines()]
    return [cells[2] for cells in lines if cells[0] == qid]


def analysed(**options):
    """The result on the toy run, with one hit a query."""
    values: dict[str, Any] = {"run": "run.trec", "qrels": "qrels.txt", "k": 1}
    settings = MissesSettings(**values | options)
    return analyze_misses(settings, compute=CPU)


def cause_of(result, qid, docid):
    """The row of a passage."""
    (row,) = [row for row in result.passages if (row.qid, row.docid) == (qid, docid)]
    return row


def test_everything_comes_from_the_manifest(folder):
    result = analysed()
    assert {row.qid for row in result.passages} <= {"q1", "q2", "q3"}
    assert all(row.rank is None or row.rank > 1 for row in result.passages)
    not_tried = {cause.cause: cause.not_tried for cause in result.causes if cause.not_tried}
    assert not_tried["approximate"] == "the search is exact, in all dimensions"
    assert not_tried["words"] == "no BM25 (--bm25)"
    assert "position" not in not_tried


def test_the_table_has_a_row_for_each_miss(folder):
    result = analysed(bm25="bm25")
    with Path("misses.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert tuple(rows[0]) == COLUMNS
    assert [(row["qid"], row["docid"]) for row in rows] == [
        (row.qid, row.docid) for row in result.passages
    ]
    counts = read_cause_counts("misses.csv")
    assert counts.total == len(rows)
    assert counts.run == "run.trec"


def test_equal_inputs_give_equal_bytes(folder):
    analysed(bm25="bm25.trec", output="a.csv")
    analysed(bm25="bm25.trec", output="b.csv")
    assert (folder / "a.csv").read_bytes() == (folder / "b.csv").read_bytes()


def test_a_passage_that_is_not_in_the_index_is_absent(folder, tiny):
    best = ranked("run.trec", "q1")[0]
    kept = [line for line in lines_of("corpus.jsonl") if json.loads(line)["_id"] != best]
    (folder / "part.jsonl").write_text("".join(kept))
    encode(model=tiny(), corpus="part.jsonl", output="part", passage_max_length=16, **COMPUTE)
    search(index="part", topics="queries.tsv", output="part.trec")
    qrels = write_qrels(folder / "q.txt", {("q1", best): 1})
    result = analysed(run="part.trec", qrels=qrels, corpus="corpus.jsonl")
    row = cause_of(result, "q1", best)
    assert (row.cause, row.rank, row.rank_after) == ("absent", None, 1)
    assert result.gains[0].mean == 1.0


def test_a_passage_that_a_bm25_index_lacks_is_absent(folder):
    best = ranked("bm25.trec", "q2")[0]
    kept = [line for line in lines_of("corpus.jsonl") if json.loads(line)["_id"] != best]
    (folder / "part.jsonl").write_text("".join(kept))
    index(type="bm25", corpus="part.jsonl", output="part")
    search(index="part", topics="queries.tsv", output="part.trec")
    qrels = write_qrels(folder / "q.txt", {("q2", best): 1})
    result = analysed(run="part.trec", qrels=qrels, corpus="corpus.jsonl")
    row = cause_of(result, "q2", best)
    assert (row.cause, row.rank_after) == ("absent", 1)
    assert {cause.not_tried for cause in result.causes if cause.cause == "position"} == {
        "the run is one of BM25"
    }


def test_a_passage_in_no_corpus_is_absent(folder):
    qrels = write_qrels(folder / "q.txt", {("q1", "nowhere"): 1})
    row = cause_of(analysed(qrels=qrels), "q1", "nowhere")
    assert (row.cause, row.change) == ("absent", "not in the index, and not in the corpus")
    assert row.rank_after is None


def test_without_a_corpus_an_absent_passage_is_not_called_absent_from_it(folder):
    qrels = write_qrels(folder / "q.txt", {("q1", "nowhere"): 1})
    (folder / "corpus.jsonl").rename(folder / "elsewhere.jsonl")
    for run in ("run.trec", "bm25.trec"):
        row = cause_of(analysed(run=run, qrels=qrels), "q1", "nowhere")
        assert (row.cause, row.change, row.rank_after) == ("absent", "not in the index", None)


def test_exact_search_finds_what_an_approximate_one_loses(folder):
    index(input="vectors", factory="IVF6,Flat", output="ivf")
    search(index="ivf", topics="queries.tsv", output="ivf.trec", nprobe=1)
    lost = {}
    for qid in ("q1", "q2", "q3"):
        best = ranked("run.trec", qid)[0]
        if ranked("ivf.trec", qid)[:1] != [best]:
            lost[qid, best] = 1
    second = ranked("run.trec", "q1")[1]
    lost = lost or {("q1", second): 1}
    qrels = write_qrels(folder / "q.txt", lost)
    result = analysed(run="ivf.trec", qrels=qrels, k=2)
    for row in result.passages:
        assert row.cause == "approximate"
        assert row.rank_after is not None


def test_a_changed_text_is_outdated(folder):
    """The relevant passage has the words of the query now; its vector is of other words."""
    lines = [json.loads(line) for line in lines_of("corpus.jsonl")]
    worst = ranked("run.trec", "q1")[-1]
    for record in lines:
        if record["_id"] == worst:
            record.update(text="cat in a house", title="")
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    qrels = write_qrels(folder / "q.txt", {("q1", worst): 1})
    row = cause_of(analysed(qrels=qrels), "q1", worst)
    assert (row.cause, row.rank_after) == ("outdated", 1)


def test_windows_and_longer_limits_are_tried_for_long_passages(folder, tiny):
    long_text = " ".join(["red blue green old big small night day"] * 4 + ["cat in a house"] * 3)
    with Path("corpus.jsonl").open("a") as corpus:
        corpus.write(json.dumps({"_id": "long", "title": "", "text": long_text}) + "\n")
    encode(
        model=tiny(),
        corpus="corpus.jsonl",
        output="vectors",
        passage_max_length=16,
        overwrite=True,
        **COMPUTE,
    )
    search(index="vectors", topics="queries.tsv", output="run.trec", overwrite=True)
    qrels = write_qrels(folder / "q.txt", {("q1", "long"): 1})
    result = analysed(qrels=qrels, k=1)
    not_tried = {cause.cause: cause.not_tried for cause in result.causes}
    row = cause_of(result, "q1", "long")
    assert not_tried["length"] == ""
    assert row.cause == "length"
    assert row.rank_after == 1


def test_all_dimensions_are_tried_where_vectors_are_cut(folder, tiny):
    encode(
        model=tiny(),
        corpus="corpus.jsonl",
        output="cut",
        truncate_dim=3,
        passage_max_length=16,
        **COMPUTE,
    )
    search(index="cut", topics="queries.tsv", output="cut.trec")
    best = ranked("run.trec", "q3")[0]
    qrels = write_qrels(folder / "q.txt", {("q3", docid): 1 for docid in ranked("run.trec", "q3")})
    result = analysed(run="cut.trec", qrels=qrels, causes=("approximate",))
    reasons = {cause.cause: cause.not_tried for cause in result.causes}
    assert reasons["approximate"] == ""
    assert reasons["hub"] == "not among --set causes"
    brought_in = {row.docid for row in result.passages if row.cause == "approximate"}
    assert brought_in == {best} - {ranked("cut.trec", "q3")[0]}


def test_cut_vectors_without_a_corpus_say_what_is_lacking(folder, tiny):
    (folder / "elsewhere.jsonl").write_text((folder / "corpus.jsonl").read_text())
    encode(model=tiny(), corpus="elsewhere.jsonl", output="cut", truncate_dim=3, **COMPUTE)
    search(index="cut", topics="queries.tsv", output="cut.trec")
    (folder / "elsewhere.jsonl").unlink()
    result = analysed(run="cut.trec")
    reasons = {cause.cause: cause.not_tried for cause in result.causes}
    assert reasons["approximate"] == "vectors are cut, and no texts of passages (--corpus)"


def test_a_long_title_without_a_text_has_no_windows(folder, tiny):
    title = " ".join(["red blue green old big small night day"] * 4)
    with Path("corpus.jsonl").open("a") as corpus:
        corpus.write(json.dumps({"_id": "long", "title": title, "text": ""}) + "\n")
    encode(model=tiny(), corpus="corpus.jsonl", output="titles", passage_max_length=16, **COMPUTE)
    search(index="titles", topics="queries.tsv", output="titles.trec")
    qid = next(qid for qid in ("q1", "q2", "q3") if ranked("titles.trec", qid)[0] != "long")
    qrels = write_qrels(folder / "q.txt", {(qid, "long"): 1})
    result = analysed(run="titles.trec", qrels=qrels)
    assert {cause.cause: cause.not_tried for cause in result.causes}["length"] == ""


def test_a_sentence_in_front_leaves_no_other_sentence_out():
    text = " ".join(f"Sentence {number} ends." for number in range(70))
    of_query = evidence({"q": ["d1"]}, {"q": {"long": 1}}, texts={"long": text})
    change = miss_passages.SentenceInFront(of_query, dense=cast(Any, None))
    orders = change._texts(Miss("q", "long", 1, None))
    assert len(orders) == miss_passages.MOST_SENTENCES - 1
    assert all("Sentence 69 ends." in passage.text for passage in orders)


def test_a_reranker_is_not_used_for_passages_outside_the_run(tiny_reranker):
    of_query = evidence({"q": ["d1", "d2"]}, {"q": {"d3": 1}}, texts=TEXTS)
    change = miss_hits.RerankerPositives(of_query, PairScorer(str(tiny_reranker()), compute=CPU))
    assert trial_of(change, "q", "d3", 1, None) is None


def test_a_score_that_is_no_number_prefers_no_hit():
    class Scorer:
        def score(self, queries, passages):
            return np.full(len(queries), np.nan, np.float32)

    of_query = evidence({"q": ["d1", "d3"]}, {"q": {"d3": 1}}, texts=TEXTS)
    of_query.queries = {"q": Query("q", "the moon")}
    change = miss_hits.RerankerPositives(of_query, cast(Any, Scorer()))
    assert trial_of(change, "q", "d3", 1, 2) is None


def test_judgments_without_a_relevant_passage_are_rejected(folder):
    qrels = write_qrels(folder / "q.txt", {("q1", "d1"): 1})
    with pytest.raises(InputError, match="no passage of a grade of 3 or more"):
        analysed(qrels=qrels, relevance_level=3)


def test_a_run_that_is_less_deep_than_k_is_warned_of(folder, caplog):
    search(index="vectors", topics="queries.tsv", output="short.trec", hits=2)
    analysed(run="short.trec", k=3)
    assert "at most 2 hits a query, and -k is 3" in caplog.text


def test_a_table_that_is_not_csv_is_an_error(tmp_path):
    path = tmp_path / "misses.csv"
    path.write_bytes((",".join(COLUMNS) + "\nrun,q\r1,d1").encode())
    with pytest.raises(InputError, match="not CSV"):
        read_cause_counts(path)


def test_each_cause_has_a_title_in_the_same_order():
    assert [*(cause.name for cause in CAUSES), MODEL, FOUND] == list(TITLES)


def test_each_change_is_of_the_cause_that_tries_it(folder):
    result = analysed(bm25="bm25", k=2)
    order = [cause.name for cause in CAUSES]
    causes_of_gains = [order.index(gain.cause) for gain in result.gains]
    assert causes_of_gains == sorted(causes_of_gains)


def test_an_unknown_cause_is_rejected(folder):
    with pytest.raises(UsageError, match="found 'hubs'"):
        analysed(causes=("hubs",))


def test_a_reranker_finds_hits_that_are_probably_relevant(folder, tiny_reranker):
    result = analysed(reranker=str(tiny_reranker()), causes=("unjudged",))
    reasons = {cause.cause: cause.not_tried for cause in result.causes}
    assert reasons["unjudged"] == ""
    for row in result.passages:
        if row.cause == "unjudged":
            assert "reranker prefers" in row.change


def test_the_reranker_counts_what_it_prefers():
    miss = Miss("q", "d", 1, 4)
    scores = {"d": 0.5, "better": 0.9, "worse": 0.1}
    trial = miss_hits._trial_of_reranker(miss, scores)
    assert trial == Trial("judge 1 hit that the reranker prefers", 3)
    assert miss_hits._trial_of_reranker(miss, {"d": 0.5, "worse": 0.1}) is None


def test_in_python_runs_are_in_memory(folder):
    run = {qid: {d: -float(r) for r, d in enumerate(ranked("run.trec", qid))} for qid in ("q1",)}
    passages = [json.loads(line) for line in lines_of("corpus.jsonl")]
    corpus = [{"id": p["_id"], "title": p["title"], "text": p["text"]} for p in passages]
    worst = ranked("run.trec", "q1")[-1]
    result = denserk.analyze_misses(
        run,
        {"q1": [worst]},
        topics={"q1": "cat in a house"},
        corpus=corpus,
        index="vectors",
        device="cpu",
        k=1,
    )
    assert cause_of(result, "q1", worst).rank == 6
    assert not (folder / "misses.csv").exists()


def test_the_replays_count_cheaper_causes():
    rows = [
        MissedPassage("q1", "d", 1, 11, "hub"),
        MissedPassage("q2", "d", 1, 11, "words", also=("position",)),
        MissedPassage("q3", "d", 1, 11, "model"),
    ]
    counts = miss_replays.count_causes("position", rows)
    assert (counts.named, counts.cheaper, counts.other) == (0, {"words": 1}, {"hub": 1, "model": 1})
    without_bm25 = miss_replays.count_causes("position", rows, without="words")
    assert without_bm25.named == 1
    assert miss_replays.causes_down_to("outdated") == ("absent", "approximate", "outdated")


def test_hits_among_the_first_have_no_cause(folder):
    pairs = [(qid, ranked("run.trec", qid)[0]) for qid in ("q1", "q2", "q3")]
    (folder / "pairs.txt").write_text("".join(f"{qid} {docid}\n" for qid, docid in pairs))
    result = analysed(pairs="pairs.txt", bm25="bm25")
    assert [row.cause for row in result.passages] == ["found"] * 3
    assert result.gains == ()


def test_a_fused_run_tries_other_weights_of_its_runs(folder):
    fuse(runs=["run.trec", "bm25.trec"], method="linear", weights=[0.9, 0.1], output="fused.trec")
    result = analysed(run="fused.trec")
    not_tried = {cause.cause: cause.not_tried for cause in result.causes}
    assert not_tried["words"] == ""
    assert not_tried["position"].startswith("the run is fused")
    assert not_tried["absent"] == ""


def test_feedback_is_not_taken_for_a_plain_search(folder):
    search(index="vectors", topics="queries.tsv", output="other.trec")
    lines = [line.split() for line in lines_of("other.trec")]
    for cells in lines:  # the ranking upside down
        cells[4] = str(-float(cells[4]))
    (folder / "other.trec").write_text("".join(" ".join(cells) + "\n" for cells in lines))
    result = analysed(run="other.trec")
    reasons = {cause.cause: cause.not_tried for cause in result.causes}
    assert reasons["position"].startswith("a search of vectors by")


def test_a_run_of_documents_is_rejected(folder):
    search(index="vectors", topics="queries.tsv", output="docs.trec", max_passage=True)
    with pytest.raises(UsageError, match="ranks documents"):
        analysed(run="docs.trec")


def write_fields(path):
    """Queries whose text is a word, and whose title is the query of the toy collection."""
    with Path(path).open("w") as topics:
        for line in lines_of("queries.tsv"):
            qid, text = line.rstrip("\n").split("\t")
            record = {"_id": qid, "text": "moon", "title": text, "page": 7, "note": ""}
            topics.write(json.dumps(record) + "\n")
    return path


@pytest.mark.parametrize("kind", ["vectors", "bm25"])
def test_a_field_that_was_not_searched_is_tried(folder, kind):
    topics = write_fields("fields.jsonl")
    search(index=kind, topics=topics, output="text.trec")
    search(index=kind, topics=topics, output="both.trec", topics_field=["title", "text"])
    brought_in = {}
    for qid in ("q1", "q2", "q3"):
        best = ranked("both.trec", qid)[0]
        if ranked("text.trec", qid)[:1] != [best]:
            brought_in[qid, best] = 1
    assert brought_in
    qrels = write_qrels(folder / "q.txt", brought_in)
    result = analysed(run="text.trec", qrels=qrels, causes=("fields", "subwords"))
    assert result.unsearched_fields == ("title,text",)
    for row in result.passages:
        assert (row.cause, row.change, row.rank_after) == ("fields", "search with title,text", 1)
    (gain,) = result.gains
    assert (gain.change, gain.scope) == ("search with title,text", "all queries")


def test_a_field_that_was_searched_is_not_tried(folder):
    topics = write_fields("fields.jsonl")
    search(index="vectors", topics=topics, output="title.trec", topics_field=["title"])
    for options in ({}, {"topics": topics}):
        result = analysed(run="title.trec", causes=("fields",), **options)
        assert result.unsearched_fields == ("text,title",)


def test_first_hits_have_no_cause_where_a_field_is_tried(folder):
    search(index="vectors", topics=write_fields("fields.jsonl"), output="text.trec")
    pairs = [(qid, ranked("text.trec", qid)[0]) for qid in ("q1", "q2", "q3")]
    (folder / "pairs.txt").write_text("".join(f"{qid} {docid}\n" for qid, docid in pairs))
    result = analysed(run="text.trec", pairs="pairs.txt")
    assert [row.cause for row in result.passages] == ["found"] * 3
    assert result.gains == ()


def test_topics_without_another_field_say_so(folder):
    result = analysed(causes=("fields",))
    reasons = {cause.cause: cause.not_tried for cause in result.causes}
    assert reasons["fields"] == "the topics have no field that was not searched"
    assert result.unsearched_fields == ()


def test_only_texts_that_all_topics_have_are_fields_to_search():
    topics = [
        Query("1", "crime", extra={"description": "Who commits it?", "page": 1, "note": "n"}),
        Query("2", "law", extra={"description": "", "page": 2}),
    ]
    assert unsearched_fields(topics, ["title"]) == ["description"]
    assert unsearched_fields(topics, ["desc"]) == ["text"]


def test_the_command_names_the_field_that_was_not_searched(folder, capsys):
    topics = write_fields("fields.jsonl")
    search(index="bm25", topics=topics, output="text.trec")
    command = ["analyze", "misses", "--run", "text.trec", "--qrels", "qrels.txt", "-k", "1"]
    assert run_command_line([*command, "--set", "causes=hub"]) == 0
    assert "--set topics-field=title,text" in capsys.readouterr().out


def test_a_data_set_of_beir_that_is_unpacked_is_found(folder):
    beir = folder / "datasets" / "toys"
    beir.mkdir(parents=True)
    (beir / "corpus.jsonl").write_text((folder / "corpus.jsonl").read_text())
    write_fields(beir / "queries.jsonl")
    search(index="bm25", topics="beir:toys", output="named.trec")
    result = analysed(run="named.trec", causes=("fields",))
    assert result.unsearched_fields == ("title,text",)


def test_a_data_set_that_is_not_here_is_named_with_what_to_type(folder, caplog):
    beir = folder / "datasets" / "toys"
    beir.mkdir(parents=True)
    write_fields(beir / "queries.jsonl")
    search(index="bm25", topics="beir:toys", output="named.trec")
    (beir / "queries.jsonl").unlink()
    beir.rmdir()
    result = analysed(run="named.trec", causes=("fields",))
    assert "beir:toys, which is not here: give --topics" in caplog.text
    reasons = {cause.cause: cause.not_tried for cause in result.causes}
    assert reasons["fields"] == "no texts of queries (--topics)"


def test_other_queries_are_rejected(folder):
    qrels = write_qrels(folder / "q.txt", {("other", "d1"): 1})
    with pytest.raises(MismatchError, match="none in common"):
        analysed(qrels=qrels)


def test_words_of_many_subwords_are_spelled_otherwise():
    assert miss_queries.split_word("getFileName") == "get File Name"
    assert miss_queries.nearest_word("fotosynthesis", {"photosynthesis"}) == "photosynthesis"
    assert miss_queries.replace_words(r"a c:\d b", {r"c:\d": r"c \d"}) == r"a c \d b"


def test_the_command_prints_causes_and_gains(folder, capsys):
    command = ["analyze", "misses", "--run", "run.trec", "--qrels", "qrels.txt", "-k", "1"]
    assert run_command_line([*command, "--bm25", "bm25", "--device", "cpu"]) == 0
    output = capsys.readouterr().out
    assert "cause\tmisses\t%\tbrings in\twhat" in output
    assert "does not apply: approximate: the search is exact" in output
    assert "none of these: the model" in output  # all others were tried, or do not apply


def test_what_no_change_brings_in_is_not_the_models_fault_while_a_cause_is_untried(folder, capsys):
    command = ["analyze", "misses", "--run", "run.trec", "--qrels", "qrels.txt", "-k", "1"]
    assert run_command_line([*command, "--device", "cpu"]) == 0
    output = capsys.readouterr().out
    assert "none of the causes that were tried" in output
    assert "not tried: words: no BM25" in output
    assert "1 cause was not tried" in output


def test_the_report_shows_the_causes(folder):
    analysed(bm25="bm25")
    assert run_command_line(["eval", "run.trec", "qrels.txt", "--report", "page"]) == 0
    page = (folder / "page" / "index.html").read_text()
    assert "Why passages were missed" in page
    assert "none of the causes that were tried" in page


def test_passages_that_were_found_are_not_counted_as_missed(folder, capsys):
    pairs = [(qid, ranked("run.trec", qid)[0]) for qid in ("q1", "q2")]
    pairs.append(("q1", ranked("run.trec", "q1")[-1]))
    (folder / "pairs.txt").write_text("".join(f"{qid} {docid}\n" for qid, docid in pairs))
    command = ["analyze", "misses", "--run", "run.trec", "--qrels", "qrels.txt", "-k", "1"]
    assert run_command_line([*command, "--device", "cpu", "--set", "pairs=pairs.txt"]) == 0
    output = capsys.readouterr().out
    assert "1 of 3 passages of --set pairs of" in output
    found_row = next(line for line in output.splitlines() if line.startswith("found\t"))
    assert found_row.split("\t")[1:3] == ["2", "-"]
    counts = read_cause_counts("misses.csv")
    assert counts.total == 1
    assert run_command_line(["eval", "run.trec", "qrels.txt", "--report", "page"]) == 0
    page = (folder / "page" / "index.html").read_text()
    assert "Missed passages: 1, " in page


def test_the_report_leaves_out_a_table_without_misses(folder):
    (folder / "none.csv").write_text(",".join(COLUMNS) + "\n")
    command = ["eval", "run.trec", "qrels.txt", "--report", "page", "--set", "misses=none.csv"]
    assert run_command_line(command) == 0
    assert "Why passages were missed" not in (folder / "page" / "index.html").read_text()


def test_the_report_takes_the_table_that_is_named(folder):
    analysed(output="table.csv")
    (folder / "misses.csv").write_text("a,b\n1,2\n")  # of something else
    command = ["eval", "run.trec", "qrels.txt", "--report", "page"]
    assert run_command_line(command) == 0
    assert "Why passages were missed" not in (folder / "page" / "index.html").read_text()
    assert run_command_line([*command, "--overwrite", "--set", "misses=table.csv"]) == 0
    assert 'href="../table.csv"' in (folder / "page" / "index.html").read_text()
    assert run_command_line([*command, "--overwrite", "--set", "misses=misses.csv"]) == 1
