"""`denserk choose` on a tiny collection: runs of known quality, and random models."""

import json
import random
import shlex
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from ir_measures import nDCG

import denserk
from denserk.commands.app import register, run
from denserk.config.choosing import ChooseSettings, parse_budget
from denserk.config.encoding import Backend, ComputeSettings, DtypeChoice
from denserk.config.formats import CorpusSettings
from denserk.config.retrieval import Bm25Settings, IndexPaths, IndexSettings, IndexType
from denserk.errors import DenserkError, MismatchError, UsageError
from denserk.evaluation.choice import Outcome, undecided_sentence
from denserk.io.manifest import Kind, Manifest, write_manifest
from denserk.io.runs import read_run_scores
from denserk.tasks.build_index import build_index
from denserk.tasks.choose import choose
from denserk.tasks.choose_candidates import (
    FinetunedEncoder,
    RebuildCommands,
    SharedInputs,
    index_checksums,
)
from denserk.tasks.choose_folder import ChoiceFolder
from denserk.tasks.choose_inputs import RetrieverFactory, parse_candidates
from tests.docs.test_readme import parse
from tests.support.tiny_models import write_tiny, write_tiny_classifier
from tests.support.toy import VOCABULARY, WORDS

QUERIES = 60
PASSAGES = 60
RESULTS = ("choice.json", "queries.tsv")


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """Passages p0, p1, ...; of each the query q0, q1, ... with some of its words; runs over it."""
    folder = tmp_path_factory.mktemp("collection")
    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS, k=12)) for _ in range(PASSAGES)]
    passages = [json.dumps({"_id": f"p{n}", "text": text}) for n, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("\n".join(passages))
    queries = [f"q{n}\t{' '.join(texts[n].split()[:4])} {n}" for n in range(QUERIES)]
    (folder / "queries.tsv").write_text("\n".join(queries))
    judged = {"qrels": range(40), "train": range(40, 50), "test": range(50, 60)}
    for name, numbers in judged.items():
        lines = [f"q{n} 0 p{n} 1\n" for n in numbers]
        (folder / f"{name}.txt").write_text("".join(lines))
    write_run(folder / "good.trec", share=0.9, seed=1)
    write_run(folder / "bad.trec", share=0.1, seed=2)
    write_run(folder / "middle.trec", share=0.6, seed=3)
    write_run(folder / "near.trec", share=0.8, seed=4)
    (folder / "copy.trec").write_text((folder / "good.trec").read_text())
    write_tiny(folder / "model", "bert", VOCABULARY, head=False)
    write_tiny_classifier(folder / "reranker", "bert", VOCABULARY)
    return folder


@pytest.fixture(autouse=True)
def without_pictures(request, monkeypatch):
    """Draw pictures, which take a second, in one test alone."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("denserk.plots.save_if_installed", lambda *arguments: None)
        monkeypatch.setattr("denserk.evaluation.choice_page.installed", lambda name: False)


@pytest.fixture
def pictures():
    """Ask for pictures."""


def write_run(path: Path, share: float, seed: int) -> None:
    """Write a run that has the relevant passage first for a share of the queries."""
    draw = random.Random(seed)
    lines = []
    for n in range(QUERIES):
        found = draw.random() < share
        first = f"p{n}" if found else f"p{(n + 1) % PASSAGES}"
        lines.append(f"q{n} Q0 {first} 1 2.0 run\n")
        lines.append(f"q{n} Q0 p{(n + 2) % PASSAGES} 2 1.0 run\n")
    path.write_text("".join(lines))


@pytest.fixture
def settings(collection, tmp_path, monkeypatch):
    """`settings(*candidates, **options)` returns those of a choice in the collection."""
    monkeypatch.chdir(collection)

    def new_settings(*candidates: str, **options: Any) -> ChooseSettings:
        values: dict[str, Any] = {
            "corpus": "corpus.jsonl",
            "topics": "queries.tsv",
            "qrels": "qrels.txt",
            "output": str(tmp_path / "choice"),
            "candidates": candidates,
            "block_size": 5,
            "hits": 20,
        }
        return ChooseSettings(**{**values, **options})

    return new_settings


def contents_of(folder: Path) -> dict[str, bytes]:
    """The files that equal comparisons have alike: results and runs."""
    paths = [folder / name for name in RESULTS]
    paths += sorted(folder.glob("runs/*.trec")) + sorted(folder.glob("blocks/*/*"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_the_best_is_chosen_and_the_worst_dropped_early(settings, tmp_path, pictures):
    choice = choose(settings("good.trec", "bad.trec"))
    assert choice.outcome is Outcome.DECIDED
    assert choice.best == ("good",)
    assert choice.leader.name == "good"
    assert choice.queries < choice.available_queries == 40
    [good, bad] = choice.systems
    assert bad.queries == good.queries
    assert bad.low <= bad.difference <= bad.high
    decision = json.loads((tmp_path / "choice/choice.json").read_text())
    assert decision["may_be_best"] == ["good"]
    assert decision["blocks"] == choice.blocks == choice.queries / 5
    page = (tmp_path / "choice/index.html").read_text()
    assert "good is the best" in page
    assert "<script" not in page
    assert "data:image/svg" in page
    assert (tmp_path / "choice/choice.png").stat().st_size > 0
    assert len(read_run_scores(tmp_path / "choice/runs/bad.trec")) == bad.queries
    rows = (tmp_path / "choice/queries.tsv").read_text().splitlines()
    assert rows[0] == "block\tquery\tgood\tbad"
    assert len(rows) == 1 + choice.queries


def test_a_dropped_system_is_not_evaluated_any_more(settings, tmp_path):
    choice = choose(settings("good.trec", "bad.trec", "a=copy.trec", block_size=4))
    queries = {system.name: system.queries for system in choice.systems}
    assert queries["good"] == queries["a"] == 40
    assert queries["bad"] < 40
    assert choice.systems[-1].name == "bad"
    last_rows = (tmp_path / "choice/queries.tsv").read_text().splitlines()[-1].split("\t")
    assert last_rows[3] == ""


def test_two_copies_of_a_system_are_undecided(settings):
    choice = choose(settings("good.trec", "copy.trec"))
    assert choice.outcome is Outcome.UNDECIDED
    assert choice.best == ("good", "copy")
    [difference] = choice.undecided
    assert difference.needed_queries is None


def test_what_would_decide_is_a_number_of_queries(settings):
    choice = choose(settings("good.trec", "near.trec", qrels="test.txt"))
    assert choice.outcome is Outcome.UNDECIDED
    [difference] = choice.undecided
    assert difference.needed_queries is not None
    assert difference.needed_queries > 10


def test_the_order_of_queries_depends_on_the_seed_alone(settings, tmp_path):
    outputs = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        output = tmp_path / name
        choose(settings("good.trec", "copy.trec", output=str(output), seed=seed))
        outputs.append(contents_of(output))
    assert outputs[0] == outputs[1] != outputs[2]


class Killed(Exception):
    """In place of a signal."""


@pytest.mark.parametrize("between", [True, False])
def test_a_killed_comparison_is_resumed_to_equal_bytes(settings, tmp_path, monkeypatch, between):
    """Between two blocks, and within one, when the runs of some systems are written."""
    candidates = ("bm25", "model", "bm25+model")
    whole = tmp_path / "whole"
    choose(settings(*candidates, output=str(whole)))
    write_block = ChoiceFolder.write_block

    def write_and_kill(self, number, record):
        if between:
            write_block(self, number, record)
        if number == 3:
            raise Killed
        if not between:
            write_block(self, number, record)

    with monkeypatch.context() as patch:
        patch.setattr(ChoiceFolder, "write_block", write_and_kill)
        with pytest.raises(Killed):
            choose(settings(*candidates))
    with pytest.raises(UsageError, match="not empty"):
        choose(settings(*candidates))
    choose(settings(*candidates, resume=True))
    assert contents_of(tmp_path / "choice") == contents_of(whole)


def test_a_budget_ends_between_blocks_and_is_continued(settings, tmp_path):
    candidates = ("good.trec", "copy.trec", "bad.trec")
    whole = tmp_path / "whole"
    choose(settings(*candidates, output=str(whole)))
    choice = choose(settings(*candidates, budget="0s"))
    assert choice.outcome is Outcome.BUDGET
    assert (choice.blocks, choice.queries) == (1, 5)
    manifest = json.loads((tmp_path / "choice/manifest.json").read_text())
    assert manifest["complete"] is False
    assert manifest["contents"]["blocks"] == 1
    for blocks in (2, 3):  # every call brings it forward
        choice = choose(settings(*candidates, budget="0s", resume=True))
        assert choice.blocks == blocks
    choose(settings(*candidates, resume=True))
    assert contents_of(tmp_path / "choice") == contents_of(whole)
    assert json.loads((tmp_path / "choice/manifest.json").read_text())["complete"] is True


def test_a_budget_that_building_uses_up_is_a_warning(settings, caplog):
    """Not where blocks were evaluated in time, and not where none remains."""
    candidates = ("bm25", "good.trec")
    with caplog.at_level("INFO", "denserk"):
        choose(settings(*candidates, budget="0s", block_size=20))
    assert "to build before the first block of queries: bm25" in caplog.text
    assert "bm25 is built" in caplog.text
    assert "--budget 0s was used up" in caplog.text
    caplog.clear()
    choose(settings(*candidates, budget="1h", block_size=20, resume=True))
    choose(settings(*candidates, budget="0s", block_size=20, resume=True))
    assert "used up" not in caplog.text
    assert "to build" not in caplog.text


def test_what_is_built_and_what_is_still_to_build_is_logged(settings, caplog):
    options: dict[str, Any] = {"train_qrels": "train.txt", "finetune_steps": 1, "block_size": 40}
    with caplog.at_level("INFO", "denserk"):
        choose(settings("bm25", "finetune:model", **options))
    messages = [record.getMessage() for record in caplog.records]
    [first] = [message for message in messages if message.startswith("bm25 is built")]
    assert first.endswith("still to build: model, finetune-model")
    [last] = [message for message in messages if message.startswith("finetune-model is built")]
    assert "still to build" not in last
    assert any("for about as long as model" in message for message in messages)


@pytest.mark.parametrize("text", ["20", "min", "-1s", "20 days", ""])
def test_a_budget_has_a_unit(text):
    with pytest.raises(UsageError, match="--budget"):
        parse_budget(text)


def test_weights_of_a_hybrid_are_of_earlier_blocks(settings, tmp_path):
    """The hybrid starts with equal weights, and then gives the good run all the weight it needs."""
    choose(settings("copy.trec", "h=good.trec+bad.trec"))
    weights = []
    for number in range(1, 9):
        record = json.loads((tmp_path / f"choice/blocks/000{number}/values.json").read_text())
        weights.append(record["weights"]["h"])
    assert weights[0] == [0.5, 0.5]
    assert all(first > second for first, second in weights[1:])


def test_a_later_query_has_no_part_in_the_weights(settings, tmp_path):
    """Judgments of the last block change its values, and no weights."""
    changed = tmp_path / "changed.txt"
    candidates = ("copy.trec", "h=good.trec+bad.trec")
    choose(settings(*candidates))
    last_block = json.loads((tmp_path / "choice/blocks/0008/values.json").read_text())
    lines = []
    for line in Path("qrels.txt").read_text().splitlines():
        qid, _, docid, grade = line.split()
        lines.append(f"{qid} 0 {'p0' if qid in last_block['queries'] else docid} {grade}\n")
    changed.write_text("".join(lines))
    other = tmp_path / "other"
    choose(settings(*candidates, qrels=str(changed), output=str(other)))
    other_block = json.loads((other / "blocks/0008/values.json").read_text())
    assert other_block["queries"] == last_block["queries"]
    assert other_block["weights"] == last_block["weights"]
    assert other_block["values"] != last_block["values"]


def test_all_kinds_of_candidates(settings, tmp_path):
    """RetrieverFactory share indexes; the commands that build one again are complete."""
    candidates = (
        "bm25",
        "model",
        "0.3*bm25+0.7*model",
        "top=bm25%3>>reranker",
        "deep=(bm25+model)>>reranker",
        "finetune:model",
        "good.trec",
    )
    options: dict[str, Any] = {"train_qrels": "train.txt", "finetune_steps": 2}
    choice = choose(
        settings(*candidates, block_size=20, **options), compute=ComputeSettings(device="cpu")
    )
    names = {system.name for system in choice.systems}
    assert names == {"bm25", "model", "0.3*bm25+0.7*model", "top", "deep", "finetune:model", "good"}
    folder = tmp_path / "choice"
    assert [path.name for path in (folder / "indexes").iterdir()] == ["bm25"]
    vectors = sorted(path.name for path in (folder / "vectors").iterdir())
    assert vectors == ["finetune-model", "model"]
    hits = read_run_scores(folder / "runs/bm25-3-reranker.trec")
    assert max(map(len, hits.values())) == 3
    for system in choice.systems:
        if system.name != "good":
            costs = (
                system.cost.query_milliseconds,
                system.cost.passage_bytes,
                system.cost.build_minutes,
            )
            assert all(cost is not None and cost > 0 for cost in costs)
    again = choose(settings(*candidates, block_size=20, resume=True, **options))
    assert again.as_json() == choice.as_json()
    check_commands(settings(*candidates, **options), tmp_path)


def check_commands(settings, folder):
    """The commands that build each kind of retriever again are ones that the parser takes."""
    with ExitStack() as opened:
        inputs = SharedInputs(
            settings,
            CorpusSettings(),
            ComputeSettings(threads=1),
            Path(settings.output),
            folder,
            nDCG @ 10,
            opened,
        )
        factory = RetrieverFactory(inputs)
        commands = RebuildCommands(inputs)
        for _, expression in parse_candidates(settings):
            factory.make(expression).rebuild(commands)
    names = {shlex.split(line)[1] for line in commands.lines}
    assert names == {"index", "encode", "search", "fuse", "rerank", "mine-negatives", "finetune"}
    for name in names:
        register(name)
    for line in commands.lines:
        parse(shlex.split(line)[1:])


def test_the_commands_build_the_winner_again(settings, tmp_path, monkeypatch):
    choice = choose(settings("h=0.9*bm25+0.1*model", "bad.trec"))
    assert choice.best == ("h",)
    for line in choice.commands:
        words = shlex.split(line)
        assert run([*words[1:], "--quiet"]) == 0
    again = read_run_scores("winner/0.9bm25+0.1model.trec")
    for qid, hits in read_run_scores(tmp_path / "choice/runs/0.9bm25+0.1model.trec").items():
        assert again[qid] == hits


def test_bm25_is_indexed_in_the_language_of_the_corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpus = {"d1": "Kliniken und Schulen", "d2": "Gärten und Dörfer"}
    topics = {"q1": "Klinik", "q2": "Garten"}
    qrels = {"q1": {"d1": 1}, "q2": {"d2": 1}}
    wrong = {"q1": {"d2": 1.0}, "q2": {"d1": 1.0}}
    options: dict[str, Any] = {"candidates": {"words": "bm25", "wrong": wrong}, "measure": "RR@10"}
    english = denserk.choose(corpus, topics, qrels, output="english", **options)
    german = denserk.choose(corpus, topics, qrels, output="ger", language="german", **options)
    assert (english.leader.mean, german.leader.mean) == (0, 1)
    assert "--type bm25 --language german" in german.commands[0]
    with pytest.raises(MismatchError, match=r"bm25 was .*german"):
        denserk.choose(corpus, topics, qrels, output="ger", resume=True, **options)


def test_queries_without_hits_are_one_warning_that_names_the_language(tmp_path, caplog):
    """Of several blocks; the option is that of `choose`, whose folder keeps an index."""
    corpus = {f"d{n}": f"Gärten und Dörfer {n}" for n in range(4)}
    topics = {f"q{n}": f"Häuser {n + 10}" for n in range(4)}
    qrels = {f"q{n}": {f"d{n}": 1} for n in range(4)}
    run_in_memory = {f"q{n}": {f"d{n}": 1.0} for n in range(4)}
    candidates = {"bm25": "bm25", "mine": run_in_memory}
    output = tmp_path / "choice"
    denserk.choose(corpus, topics, qrels, output=output, candidates=candidates, block_size=2)
    [warning] = [record.message for record in caplog.records if "no hits" in record.message]
    assert warning.startswith("2 queries have no hits in bm25")
    assert "add --language german" in warning


def test_a_rough_number_of_queries_is_said_to_be_rough(tmp_path):
    """One query of forty differs, so that little is known of the others."""
    corpus = {f"d{n}": "a text" for n in range(41)}
    topics = {f"q{n}": f"query {n}" for n in range(40)}
    qrels = {f"q{n}": {f"d{n}": 1} for n in range(40)}
    good = {f"q{n}": {f"d{n}": 1.0} for n in range(40)}
    other = {**good, "q0": {"d40": 1.0}}
    candidates = {"good": good, "other": other}
    choice = denserk.choose(
        corpus, topics, qrels, output=tmp_path / "choice", candidates=candidates
    )
    [difference] = choice.undecided
    assert difference.is_rough
    assert undecided_sentence(difference, choice).startswith("very roughly")


def test_unfinished_vectors_are_rejected_before_others_are_built(settings, tmp_path):
    vectors = tmp_path / "vectors"
    manifest = Manifest(Kind.VECTORS, complete=False)
    vectors.mkdir()
    write_manifest(vectors, manifest)
    with pytest.raises(MismatchError, match="is unfinished"):
        choose(settings("bm25", str(vectors)))
    assert not (tmp_path / "choice").exists()


def test_training_queries_that_train_nothing_are_a_warning(settings, caplog):
    choose(settings("good.trec", "bad.trec", train_qrels="train.txt"))
    assert "--train-qrels train.txt trains nothing" in caplog.text


def test_options_of_bm25_need_it_among_the_candidates(settings):
    with pytest.raises(UsageError, match="--language: no candidate is bm25"):
        choose(settings("good.trec", "bad.trec"), bm25=Bm25Settings(language="german"))


def test_sealed_queries_are_opened_once(settings, tmp_path, caplog):
    options = {"test_qrels": "test.txt"}
    choice = choose(settings("good.trec", "bad.trec", **options))
    record = tmp_path / "choice/sealed.jsonl"
    assert choice.test is not None
    assert choice.test.means.keys() == {"good"}
    assert choice.test.queries == 10
    [line] = record.read_text().splitlines()
    assert json.loads(line)["means"] == choice.test.means
    again = choose(settings("good.trec", "bad.trec", resume=True, **options))
    assert again.test is not None
    assert again.test.was_recorded
    assert len(record.read_text().splitlines()) == 1
    third = choose(settings("good.trec", "bad.trec", resume=True, open_again=True, **options))
    assert third.test is not None
    assert third.test.opening == 2
    assert len(record.read_text().splitlines()) == 2
    assert "opening number 2" in caplog.text


@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}])
def test_runs_of_opened_queries_are_written_again(settings, tmp_path, options):
    candidates = ("good.trec", "bad.trec")
    choose(settings(*candidates, test_qrels="test.txt"))
    run_file = tmp_path / "choice/test/good.trec"
    before = run_file.read_bytes()
    run_file.unlink()
    choose(settings(*candidates, test_qrels="test.txt", **options))
    assert run_file.read_bytes() == before
    assert len((tmp_path / "choice/sealed.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("length", [0, 1, 40])
def test_a_record_that_was_cut_short_is_left_out(settings, tmp_path, caplog, length):
    """The opening before it is still there, and the next one is added behind that."""
    options = {"test_qrels": "test.txt"}
    choose(settings("good.trec", "bad.trec", **options))
    record = tmp_path / "choice/sealed.jsonl"
    [line] = record.read_text().splitlines(keepends=True)
    record.write_text(line + line[:length])
    again = choose(settings("good.trec", "bad.trec", resume=True, **options))
    assert again.test is not None
    assert again.test.was_recorded
    assert ("sealed.jsonl:2" in caplog.text) is (length > 0)
    third = choose(settings("good.trec", "bad.trec", resume=True, open_again=True, **options))
    assert third.test is not None
    assert third.test.opening == 2
    first_line, second_line = record.read_text().splitlines(keepends=True)
    assert first_line == line
    assert json.loads(second_line)["opening"] == 2


def test_a_record_without_its_last_line_end_counts(settings, tmp_path):
    """As an editor leaves it: the test queries were opened."""
    options = {"test_qrels": "test.txt"}
    choose(settings("good.trec", "bad.trec", **options))
    record = tmp_path / "choice/sealed.jsonl"
    record.write_text(record.read_text().rstrip())
    again = choose(settings("good.trec", "bad.trec", resume=True, **options))
    assert again.test is not None
    assert again.test.was_recorded


def test_a_broken_record_is_an_error(settings, tmp_path):
    options = {"test_qrels": "test.txt"}
    choose(settings("good.trec", "bad.trec", **options))
    record = tmp_path / "choice/sealed.jsonl"
    record.write_text("{}\n" + record.read_text())
    with pytest.raises(DenserkError, match="record of an opening"):
        choose(settings("good.trec", "bad.trec", resume=True, **options))


def test_sealed_queries_stay_sealed_without_a_decision(settings, tmp_path):
    choice = choose(settings("good.trec", "copy.trec", test_qrels="test.txt", budget="0s"))
    assert choice.test is None
    assert not (tmp_path / "choice/sealed.jsonl").exists()


def test_another_decision_does_not_open_sealed_queries_again(settings):
    choose(settings("good.trec", "bad.trec", test_qrels="test.txt"))
    again = settings("bad.trec", "middle.trec", test_qrels="test.txt", overwrite=True)
    with pytest.raises(UsageError, match=r"was opened at .* for nDCG@10 of good"):
        choose(again)
    decision = json.loads(Path(again.output, "choice.json").read_text())
    assert decision["leader"] == "middle"


@pytest.mark.parametrize("option", ["test_qrels", "train_qrels"])
def test_queries_have_one_purpose(settings, option):
    with pytest.raises(MismatchError, match="40 queries in common"):
        choose(settings("good.trec", "bad.trec", **{option: "qrels.txt"}))


def test_shared_training_queries_can_be_left_out(settings, tmp_path, caplog):
    """q39 decides, q50 is a test query; another training query has the text of a test query."""
    topics = Path("queries.tsv").read_text().splitlines()
    text_of_test_query = topics[51].split("\t")[1]
    train_topics = tmp_path / "train.tsv"
    train_topics.write_text("\n".join([*topics, f"x\t{text_of_test_query.upper()}"]))
    train_qrels = tmp_path / "train.txt"
    lines = [f"{qid} 0 p{n} 1\n" for n, qid in enumerate(["q39", "q50", "x", "q40", "q41"])]
    train_qrels.write_text("".join(lines))
    options: dict[str, Any] = {
        "train_qrels": str(train_qrels),
        "train_topics": str(train_topics),
        "test_qrels": "test.txt",
        "finetune_steps": 1,
        "block_size": 20,
    }
    candidates = ("finetune:model", "bad.trec")
    with pytest.raises(MismatchError, match="have 1 queries in common") as error:
        choose(settings(*candidates, **options))
    assert "--set drop-shared-training=yes" in str(error.value.hint)
    with caplog.at_level("INFO", "denserk"):
        choice = choose(settings(*candidates, drop_shared_training=True, **options))
    assert "3 of 5 training queries are left out" in caplog.text
    folder = tmp_path / "choice"
    assert read_run_scores(folder / "training/finetune-model.trec").keys() == {"q40", "q41"}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["made_from"]["train_qrels"]["dropped_queries"] == 3
    again = choose(settings(*candidates, drop_shared_training=True, resume=True, **options))
    assert again.as_json() == choice.as_json()


def test_the_winner_is_trained_again_without_shared_queries(settings, tmp_path):
    Path(tmp_path / "train.txt").write_text("q39 0 p39 1\nq40 0 p40 1\n")
    choice = choose(
        settings(
            *("finetune:model", "x=0.5*finetune:model+0.5*model"),
            train_qrels=str(tmp_path / "train.txt"),
            drop_shared_training=True,
            finetune_steps=1,
            block_size=40,
        )
    )
    [command] = [line for line in choice.commands if "mine-negatives" in line]
    qrels = tmp_path / "choice/training/qrels.txt"
    assert str(qrels) in shlex.split(command)
    assert qrels.read_text() == "q40 0 p40 1\n"


def test_training_needs_queries_that_are_not_shared(settings):
    options: dict[str, Any] = {"train_qrels": "qrels.txt", "drop_shared_training": True}
    with pytest.raises(MismatchError, match="all 40 training queries"):
        choose(settings("finetune:model", "bad.trec", **options))


def test_a_query_of_another_file_is_known_by_its_text(settings, tmp_path):
    [text] = [line.split("\t")[1] for line in Path("queries.tsv").read_text().splitlines()[:1]]
    (tmp_path / "test.tsv").write_text(f"x1\t{text.upper()}\nx2\tanother one\n")
    (tmp_path / "test.txt").write_text("x1 0 p0 1\nx2 0 p1 1\n")
    options = {"test_qrels": str(tmp_path / "test.txt"), "test_topics": str(tmp_path / "test.tsv")}
    with pytest.raises(MismatchError, match="1 queries in common"):
        choose(settings("bm25", "model", **options))


@pytest.mark.parametrize(
    ("candidates", "options", "message"),
    [
        (["good.trec"], {}, "nothing to choose"),
        (["good.trec", "nothing/here"], {}, "nothing/here is no folder"),
        (["good.trec", "good.trec"], {}, "called good"),
        (["good.trec", "bm25+"], {}, "missing at the end"),
        (["good.trec", "0.3*bm25"], {}, "parts of a sum"),
        (["good.trec", "0.3*bm25+model"], {}, "others have none"),
        (["good.trec", "bm25%none>>reranker"], {}, "number of hits"),
        (["good.trec", "(bm25"], {}, "bracket"),
        (["good.trec", "bm25>>model"], {}, "no cross-encoder"),
        (["good.trec", "finetune:model"], {}, "needs training queries"),
        (["good.trec", "qrels.txt"], {}, "no run"),
        (["good.trec", "bad.trec"], {"measure": "NumRet"}, "between 0 and 1"),
        (["good.trec", "bad.trec"], {"measure": "nDCG@10 R@10"}, "one measure"),
        (["good.trec", "bad.trec"], {"measure": "gm_map"}, "between 0 and 1"),
    ],
)
def test_what_cannot_be_compared(settings, tmp_path, candidates, options, message):
    with pytest.raises(DenserkError, match=message):
        choose(settings(*candidates, **options))
    assert not (tmp_path / "choice").exists()


@pytest.mark.parametrize(
    ("candidates", "proposal"),
    [
        (["bm52"], "did you mean bm25"),
        (["good.trec", "BM25"], "did you mean bm25"),
        (["good.trec", "x=bm52+model"], "did you mean bm25"),
        (["minlm"], "did you mean minilm"),
        (["bm25,minilm"], "--candidates bm25 --candidates minilm"),
        (["good.trec", "bm25,model"], "--candidates bm25 --candidates model"),
    ],
)
def test_a_misspelled_candidate_brings_the_right_one(settings, candidates, proposal):
    with pytest.raises(UsageError) as error:
        choose(settings(*candidates))
    assert proposal in str(error.value.hint)


def test_a_file_whose_name_is_like_a_retriever_is_a_candidate(settings, tmp_path, monkeypatch):
    (tmp_path / "bm25,a.trec").write_text(Path("good.trec").read_text())
    (tmp_path / "bm2").write_text(Path("bad.trec").read_text())
    parsed = settings(str(tmp_path / "bm25,a.trec"), "bm2")
    monkeypatch.chdir(tmp_path)
    assert [candidate.label for candidate in parse_candidates(parsed)] == ["bm25,a", "bm2"]


def test_topics_without_judgments(settings, tmp_path):
    (tmp_path / "other.tsv").write_text("x\tanother query\n")
    with pytest.raises(MismatchError, match="none of the queries"):
        choose(settings("good.trec", "bad.trec", topics=str(tmp_path / "other.tsv")))


def test_a_corpus_in_place_of_the_topics_is_said_to_be_one(settings):
    swapped = {"corpus": "queries.tsv", "topics": "corpus.jsonl"}
    with pytest.raises(MismatchError) as error:
        choose(settings("good.trec", "bad.trec", **swapped))
    assert error.value.hint == "corpus.jsonl has ids of judged passages: is it the corpus?"


def test_a_run_of_other_queries_leaves_no_folder(settings, tmp_path):
    (tmp_path / "other.trec").write_text("x Q0 p0 1 1.0 run\n")
    with pytest.raises(MismatchError, match="none in common"):
        choose(settings("good.trec", str(tmp_path / "other.trec")))
    assert not (tmp_path / "choice").exists()


def test_a_changed_run_is_not_resumed(settings, tmp_path):
    changing = tmp_path / "changing.trec"
    changing.write_text(Path("bad.trec").read_text())
    choose(settings("good.trec", str(changing), budget="0s"))
    changing.write_text(Path("middle.trec").read_text())
    with pytest.raises(MismatchError, match="runs_sha256"):
        choose(settings("good.trec", str(changing), resume=True))


def test_a_run_cannot_tell_test_queries_of_the_same_ids(settings, tmp_path):
    (tmp_path / "test.tsv").write_text("q0\tanother question\n")
    (tmp_path / "test.txt").write_text("q0 0 p0 1\n")
    options = {"test_qrels": str(tmp_path / "test.txt"), "test_topics": str(tmp_path / "test.tsv")}
    with pytest.raises(MismatchError, match="does not tell apart"):
        choose(settings("good.trec", "bad.trec", **options))


def test_judged_queries_without_text(settings, tmp_path):
    (tmp_path / "some.tsv").write_text("q0\ta query\nq1\tanother\n")
    with pytest.raises(MismatchError, match="lacks 38 of the 40"):
        choose(settings("good.trec", "bad.trec", topics=str(tmp_path / "some.tsv")))


def test_fewer_queries_than_two_blocks_are_one_look(settings, caplog):
    choice = choose(settings("good.trec", "bad.trec", block_size=50))
    assert choice.blocks == 1
    assert "one block" in caplog.text


def copy_of_folder(source: str, target: Path) -> Path:
    """Copy a folder of the collection, or replace an earlier copy."""
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))


def test_a_changed_reranker_is_not_resumed(settings, tmp_path):
    """Also where every block is evaluated, and not as the one of a recorded opening."""
    reranker = copy_of_folder("reranker", tmp_path / "reranker")
    candidates = (f"x=bad.trec>>{reranker}", "good.trec")
    options: dict[str, Any] = {"test_qrels": "test.txt", "block_size": 20}
    first = choose(settings(*candidates, **options))
    again = choose(settings(*candidates, resume=True, **options))
    assert again.as_json() == first.as_json()
    write_tiny_classifier(reranker, "bert", VOCABULARY[:-1])
    with pytest.raises(MismatchError, match=r"reranker \(weights, tokenizer") as error:
        choose(settings(*candidates, resume=True, **options))
    assert "--overwrite" in str(error.value.hint)
    with pytest.raises(UsageError, match="was opened at"):
        choose(settings(*candidates, overwrite=True, **options))


def test_a_changed_index_is_not_resumed(settings, tmp_path):
    settings()
    index = tmp_path / "index"
    (tmp_path / "less.jsonl").write_text(
        "\n".join(Path("corpus.jsonl").read_text().split("\n")[1:])
    )
    words = ["index", "--type", "bm25", "--output", str(index), "--quiet", "--corpus"]
    assert run([*words, "corpus.jsonl"]) == 0
    candidates = (str(index), "good.trec")
    choose(settings(*candidates, budget="0s"))
    choose(settings(*candidates, budget="0s", resume=True))
    assert run([*words, str(tmp_path / "less.jsonl"), "--overwrite"]) == 0
    with pytest.raises(MismatchError, match=r"changed since .*index \(.*docid"):
        choose(settings(*candidates, resume=True))
    choose(settings(*candidates, budget="0s", overwrite=True))


def test_a_changed_model_is_not_resumed(settings, tmp_path):
    model = copy_of_folder("model", tmp_path / "model")
    candidates = (str(model), "good.trec")
    choose(settings(*candidates, budget="0s"))
    write_tiny(model, "bert", VOCABULARY[:-1], head=False)
    with pytest.raises(MismatchError, match="fingerprint"):
        choose(settings(*candidates, resume=True))


@pytest.mark.parametrize("file", ["docid", "index"])
def test_an_index_of_another_tool_is_told_from_others(tmp_path, file):
    (tmp_path / "docid").write_text("d1\n")
    (tmp_path / "index").write_text("vectors")
    checksums = index_checksums(str(tmp_path))
    assert index_checksums(str(tmp_path)) == checksums
    (tmp_path / file).write_text("d22")
    assert index_checksums(str(tmp_path)) != checksums


def test_another_question_is_not_resumed(settings):
    choose(settings("good.trec", "copy.trec"))
    with pytest.raises(MismatchError, match="block_size"):
        choose(settings("good.trec", "copy.trec", block_size=10, resume=True))


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
@pytest.mark.parametrize("source", ["model", "folder"])
def test_a_folder_of_something_else_is_rejected_at_once(settings, tmp_path, source, options):
    if source == "model":
        shutil.copytree("model", tmp_path / "choice")
    else:
        (tmp_path / "choice/letters").mkdir(parents=True)
    with pytest.raises(UsageError) as raised:
        choose(settings("good.trec", "copy.trec", **options))
    assert "--overwrite" not in str(raised.value.hint)


def test_an_index_is_no_choice(settings, tmp_path):
    build_index(
        IndexPaths(corpus="corpus.jsonl", output=str(tmp_path / "choice")),
        IndexSettings(type=IndexType.BM25),
    )
    with pytest.raises(MismatchError, match="is an index, not a choice"):
        choose(settings("good.trec", "copy.trec"))


def test_overwriting_removes_no_other_files(settings, tmp_path):
    choose(settings("good.trec", "copy.trec"))
    note = tmp_path / "choice/blocks/0001/note.txt"
    note.write_text("mine")
    choose(settings("good.trec", "bad.trec", block_size=10, overwrite=True))
    assert note.read_text() == "mine"
    assert not (tmp_path / "choice/runs/copy.trec").exists()


def test_overwriting_does_not_keep_a_model_of_other_training_queries(settings):
    """They may be the queries that now decide."""
    options: dict[str, Any] = {"finetune_steps": 1, "block_size": 20}
    candidates = ("finetune:model", "good.trec")
    choose(settings(*candidates, train_qrels="train.txt", **options))
    for change in ({"train_qrels": "test.txt"}, {"train_qrels": "train.txt", "finetune_steps": 2}):
        with pytest.raises(MismatchError, match="was trained in another way") as error:
            choose(settings(*candidates, overwrite=True, **{**options, **change}))
        assert "another --output" in str(error.value.hint)
    with pytest.raises(MismatchError, match="train_qrels"):
        choose(settings(*candidates, train_qrels="test.txt", resume=True, **options))


@pytest.mark.parametrize("dtype", [DtypeChoice.AUTO, DtypeChoice.BFLOAT16])
def test_a_model_is_fine_tuned_in_the_precision_that_is_asked_for(settings, tmp_path, dtype):
    """In float32 by default, as `finetune` does, also where texts are encoded in another one."""
    choice = choose(
        settings(
            *("finetune:model", "x=0.5*finetune:model+0.5*model"),
            train_qrels="train.txt",
            finetune_steps=1,
            block_size=40,
        ),
        compute=ComputeSettings(device="cpu", dtype=dtype, backend=Backend.TORCH),
    )
    training = json.loads((tmp_path / "choice/models/finetune-model/training.json").read_text())
    trained_dtype = training["optimizer"]["dtype"]
    [command] = [line for line in choice.commands if line.startswith("denserk finetune ")]
    if dtype is DtypeChoice.AUTO:
        assert trained_dtype == "float32"
        assert "--dtype" not in command
    else:
        assert trained_dtype == "bfloat16"
        assert "--dtype bfloat16" in command


def test_a_training_that_did_not_begin_may_have_other_settings(settings, monkeypatch):
    options: dict[str, Any] = {"train_qrels": "train.txt", "block_size": 40}
    candidates = ("finetune:model", "good.trec")

    def kill(self):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(FinetunedEncoder, "_mine", kill)
        with pytest.raises(Killed):
            choose(settings(*candidates, finetune_steps=2, **options))
    choose(settings(*candidates, finetune_steps=1, overwrite=True, **options))


def test_an_index_of_another_corpus_is_not_overwritten(settings, tmp_path):
    choose(settings("bm25", "good.trec", block_size=20))
    shorter = tmp_path / "shorter.jsonl"
    shorter.write_text("".join(Path("corpus.jsonl").read_text().splitlines(keepends=True)[:50]))
    with pytest.raises(MismatchError) as error:
        choose(settings("bm25", "good.trec", corpus=str(shorter), overwrite=True))
    assert "choose another --output" in str(error.value.hint)


def test_a_recorded_opening_is_of_the_same_systems(settings):
    """Not of others that have their names."""
    choose(settings("x=good.trec", "bad.trec", test_qrels="test.txt"))
    other = settings("x=near.trec", "bad.trec", test_qrels="test.txt", overwrite=True)
    with pytest.raises(UsageError, match="was opened at"):
        choose(other)


def test_a_comparison_that_starts_over_forgets_the_time_of_searches(settings, tmp_path):
    for overwrite in (False, True):
        choose(settings("good.trec", "copy.trec", overwrite=overwrite))
    costs = json.loads((tmp_path / "choice/costs.json").read_text())
    assert costs["searched_queries"] == {"good": 40, "copy": 40}


def test_an_interrupted_start_does_not_leave_runs_behind(settings, tmp_path, monkeypatch):
    """A comparison that starts over removes them, and does not read them as its own."""
    choose(settings("good.trec", "bad.trec"))
    with monkeypatch.context() as patch:
        patch.setattr("denserk.tasks.choose.BlockwiseComparison", None)
        with pytest.raises(TypeError):
            choose(settings("good.trec", "bad.trec", resume=True))
    choose(settings("near.trec", "copy.trec", overwrite=True))
    assert not (tmp_path / "choice/runs/bad.trec").exists()


def test_equal_means_of_different_values_are_equal(settings, tmp_path):
    """The reciprocal ranks 1, 1/2, 1/3 and 1/2, 1/3, 1 have sums that differ in the last digit."""
    for name, ranks in {"a": (1, 2, 3), "b": (2, 3, 1)}.items():
        lines = []
        for n in range(39):
            for rank in (1, 2, 3):
                docid = f"p{n}" if rank == ranks[n % 3] else f"other{rank}"
                lines.append(f"q{n} Q0 {docid} {rank} {9 - rank} run\n")
        (tmp_path / f"{name}.trec").write_text("".join(lines))
    (tmp_path / "qrels.txt").write_text("".join(f"q{n} 0 p{n} 1\n" for n in range(39)))
    runs = [str(tmp_path / "a.trec"), str(tmp_path / "b.trec")]
    choice = choose(settings(*runs, qrels=str(tmp_path / "qrels.txt"), measure="RR@10"))
    [difference] = choice.undecided
    assert difference.difference == 0
    assert "the same mean" in undecided_sentence(difference, choice)


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1 - 1e-15])
def test_any_alpha(settings, alpha):
    choice = choose(settings("good.trec", "near.trec", alpha=alpha, block_size=20))
    assert choice.alpha == alpha


def test_long_candidates_have_short_file_names(settings, tmp_path):
    candidate = "+".join(f"good.trec%{depth}" for depth in range(1, 40))
    choose(settings("0.5*good.trec+0.5*bad.trec", candidate, budget="0s", block_size=3))
    names = [path.name for path in (tmp_path / "choice/runs").iterdir()]
    assert max(map(len, names)) < 150


def test_runs_of_one_name_need_another(settings, tmp_path):
    (tmp_path / "good.trec").write_text(Path("good.trec").read_text())
    with pytest.raises(UsageError) as error:
        choose(settings("good.trec", str(tmp_path / "good.trec")))
    assert "another=good.trec" in str(error.value.hint)


def test_queries_without_a_relevant_passage(settings, tmp_path, caplog):
    qrels = tmp_path / "qrels.txt"
    lines = [f"q{n} 0 p{n} {0 if n < 3 else 1}\n" for n in range(10)]
    qrels.write_text("".join(lines))
    choose(settings("good.trec", "bad.trec", qrels=str(qrels)))
    assert "for 3 of the 10 queries" in caplog.text
    qrels.write_text("".join(lines[:3]))
    with pytest.raises(MismatchError, match="no passage of the 3 queries relevant"):
        choose(settings("good.trec", "bad.trec", qrels=str(qrels), overwrite=True))


def test_training_judgments_of_another_corpus(settings, tmp_path):
    (tmp_path / "train.txt").write_text("q41 0 nowhere 1\n")
    options = {"train_qrels": str(tmp_path / "train.txt")}
    with pytest.raises(MismatchError, match=r"train.txt judges.*'p0'.*'nowhere'"):
        choose(settings("finetune:model", "good.trec", **options))
    assert not (tmp_path / "choice").exists()


@pytest.mark.parametrize("option", ["qrels", "test_qrels"])
def test_judgments_of_another_corpus(settings, tmp_path, option):
    """An error before anything is built, unless one relevant passage is in the corpus."""
    lines = [f"q{n} 0 x{n} 1\nq{n} 0 p{n} 0\n" for n in range(50, 59)]
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("".join(lines))
    with pytest.raises(MismatchError, match=r"'p0'.*'x50'"):
        choose(settings("bm25", "good.trec", **{option: str(qrels)}))
    assert not (tmp_path / "choice").exists()
    qrels.write_text("".join([*lines, "q59 0 p59 1\n"]))
    choose(settings("bm25", "good.trec", **{option: str(qrels)}))


def test_judgments_without_the_endings_of_files(settings, tmp_path):
    folder = tmp_path / "docs/bicycle"
    folder.mkdir(parents=True)
    (folder.parent / "about.txt").write_text("the moon")
    for n in range(40):
        (folder / f"{n}.txt").write_text(f"the red boat {n}")
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("".join(f"q{n} 0 bicycle/{n} 1\n" for n in range(5, 40)))
    options = {"corpus": str(folder.parent), "qrels": str(qrels)}
    with pytest.raises(MismatchError, match=r"'bicycle/\d+\.txt'"):
        choose(settings("bm25", "good.trec", **options))


def test_an_unfinished_comparison_is_resumed_without_the_corpus(settings, tmp_path):
    shutil.copy("corpus.jsonl", tmp_path / "corpus.jsonl")
    options = {"corpus": str(tmp_path / "corpus.jsonl")}
    candidates = ("bm25", "good.trec", "copy.trec")
    choose(settings(*candidates, budget="0s", **options))
    choice = choose(settings(*candidates, resume=True, **options))
    assert choice.outcome is not Outcome.BUDGET


def test_existing_hits_of_another_corpus_are_a_warning(settings, tmp_path, caplog):
    other = tmp_path / "other.trec"
    other.write_text("".join(f"q{n} Q0 p{n}.txt 1 1.0 run\n" for n in range(40)))
    choose(settings("good.trec", "bad.trec", str(other)))
    [warning] = [record.message for record in caplog.records if "same corpus" in record.message]
    assert warning.startswith(f"{other}: ")
    assert ".txt'" in warning


def test_topics_that_are_read_twice_are_files(settings):
    with pytest.raises(UsageError, match="--train-topics -"):
        settings("bm25", "model", train_qrels="train.txt", train_topics="-")


@pytest.mark.parametrize("name", ["my run", "bm25+minilm", "a=b", ""])
def test_names_in_python_are_names(settings, tmp_path, name):
    settings()
    runs: dict[str, Any] = {name: "good.trec", "bad": "bad.trec"}
    with pytest.raises(UsageError, match="is no name"):
        denserk.choose(
            "corpus.jsonl", "queries.tsv", "qrels.txt", output=tmp_path / "choice", candidates=runs
        )


def test_a_call_that_fails_at_once_leaves_no_inputs(settings, tmp_path):
    settings()
    qrels = {f"q{n}": {f"x{n}": 1} for n in range(40)}
    output = tmp_path / "choice"
    candidates = ["bm25", "good.trec"]
    with pytest.raises(MismatchError):
        denserk.choose("corpus.jsonl", "queries.tsv", qrels, output=output, candidates=candidates)
    assert not list(tmp_path.iterdir())
    (tmp_path / "choice.inputs").mkdir()
    (tmp_path / "choice.inputs/note").touch()
    with pytest.raises(MismatchError):
        denserk.choose("corpus.jsonl", "queries.tsv", qrels, output=output, candidates=candidates)
    assert (tmp_path / "choice.inputs/note").exists()


def test_the_python_function_takes_runs_in_memory(collection, tmp_path):
    good = read_run_scores(collection / "good.trec")
    bad = read_run_scores(collection / "bad.trec")
    qrels = {f"q{n}": {f"p{n}": 1} for n in range(40)}
    topics = {f"q{n}": f"query {n}" for n in range(40)}
    corpus = [{"_id": f"p{n}", "text": "a passage"} for n in range(PASSAGES)]
    choice = denserk.choose(
        corpus,
        topics,
        qrels,
        output=tmp_path / "choice",
        candidates={"good": good, "bad": bad},
        block_size=5,
    )
    assert choice.best == ("good",)


def test_a_call_without_overwrite_leaves_the_inputs_of_the_choice_that_is_there(
    collection, tmp_path, caplog
):
    caplog.set_level("INFO")
    qrels = {f"q{n}": {f"p{n}": 1} for n in range(40)}
    files = (collection / "corpus.jsonl", collection / "queries.tsv")
    output = tmp_path / "choice"
    candidates = [str(collection / "good.trec"), str(collection / "bad.trec")]
    denserk.choose(*files, qrels, output=output, candidates=candidates, block_size=5)
    assert "choice.inputs" in caplog.text
    stored_qrels = (tmp_path / "choice.inputs/qrels.txt").read_bytes()
    qrels["q1"] = {"p2": 1}
    with pytest.raises(UsageError, match="is not empty"):
        denserk.choose(*files, qrels, output=output, candidates=candidates, block_size=5)
    assert (tmp_path / "choice.inputs/qrels.txt").read_bytes() == stored_qrels
    denserk.choose(
        *files, qrels, output=output, candidates=candidates, block_size=5, overwrite=True
    )
    assert (tmp_path / "choice.inputs/qrels.txt").read_bytes() != stored_qrels
