"""Are the causes that `analyze misses` names the true ones? Planted cases of each, and controls.

    python -m tests.benchmarks.miss_replays --data DIR --model minilm --collection squad

DATA holds collections in BEIR layout: squad, scifact, or another with queries that are judged for
single passages. For each cause, passages that stand among the first 10 hits are made to be missed
by that cause and nothing else: taken out of the index, put behind filler, searched in an
approximate index, crowded out, and so on. Those that are missed then are analysed, with the BM25
index of the planted collection ("given"), and as if there were none ("none").

    named    the planted cause is the one that is named
    cheaper  a cheaper change brings the passage in, too, and so does the planted one
    other    the planted change does not bring the passage in, or not alone

Two controls follow: hits that stand among the first 10, which must have no cause, and passages
drawn from ranks 11 to 100, called relevant, which no cause keeps out: what is named there is
chance.
"""

import argparse
import logging
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from denserk.commands.retrieve import encode, index, search
from denserk.config.analysis import MissesSettings
from denserk.config.encoding import Backend, ComputeSettings
from denserk.config.formats import CorpusFormat, TopicsFormat
from denserk.data.sentences import split_sentences
from denserk.data.tokenization import load_tokenizer
from denserk.io.corpus import read_passages, write_passages
from denserk.io.misses import FOUND, MODEL, MissedPassage
from denserk.io.model_files import find_model
from denserk.io.qrels import read_qrels_map
from denserk.io.topics import read_queries, write_queries
from denserk.io.vectors import open_vectors
from denserk.models.text_encoder import TextEncoder
from denserk.records import NO_FIELDS, Passage, Query
from denserk.tasks.analyze.miss_causes import CAUSES
from denserk.tasks.analyze.miss_inputs import read_hits
from denserk.tasks.analyze.miss_queries import MANY_SUBWORDS
from denserk.tasks.analyze.miss_search import rank_of
from denserk.tasks.analyze.misses import analyze_misses
from tests.benchmarks.studies import beir_file

K = 10
DEPTH = 100
COPIES = 12  # of a hit
HUBS = 12
FILLER_TOKENS = 270  # beyond the 256 tokens that MiniLM reads
CANDIDATES = 8  # tried cases for each that is needed: order matters in few
FILLER_WORDS = (15, 30, 60)  # beside a sentence
CONTROLS = 200
COMPUTE = {"device": "cpu", "dtype": "float32"}

CPU = ComputeSettings(device="cpu", backend=Backend.TORCH)

NO_CAUSE = (FOUND, MODEL)

Pairs = dict[str, str]  # query id -> passage id


class Counts(NamedTuple):
    """How the planted cases of a cause were named."""

    cases: int
    named: int
    cheaper: Counter[str]
    other: Counter[str]

    @property
    def cells(self) -> list[str]:
        """The cells of a table."""
        right = self.named + sum(self.cheaper.values())
        cheaper = " ".join(f"{cause} {count}" for cause, count in self.cheaper.most_common())
        other = " ".join(f"{cause} {count}" for cause, count in self.other.most_common())
        return [
            str(self.cases),
            str(self.named),
            cheaper or "-",
            other or "-",
            f"{100 * right / max(self.cases, 1):.0f} %",
        ]


@dataclass
class Planted:
    """A collection in which passages are missed, and how it is searched."""

    pairs: Pairs  # planted cases
    passages: list[Passage]  # the corpus that the analysis reads
    encoded: list[Passage] | None = None  # what is in the index; None: the corpus
    queries: list[Query] | None = None  # None: as they were
    index_options: dict[str, str | int] = field(default_factory=dict)
    search_options: dict[str, int] = field(default_factory=dict)
    hub_vectors: dict[str, np.ndarray] = field(default_factory=dict)  # by passage id


class Study:
    """A collection, its vectors and its first hits."""

    def __init__(self, data: Path, collection: str, model: str, work: Path, cases: int) -> None:
        self.model = model
        self.work = work
        self.cases = cases
        self.random = random.Random(1)
        folder = data / collection
        self.passages = list(read_passages(beir_file(folder, "corpus")))
        self.texts = {passage.docid: passage for passage in self.passages}
        grades: dict[str, dict[str, int]] = {}
        for split in sorted((folder / "qrels").glob("*.tsv")):
            grades |= read_qrels_map(str(split))
        self.grades = grades
        queries = [
            query for query in read_queries(beir_file(folder, "queries")) if query.qid in grades
        ]
        self.random.shuffle(queries)
        # without the collection's further fields: those that a plant needs are its own
        self.queries = [query._replace(extra=NO_FIELDS) for query in queries[: 20 * cases]]
        self.vectors = work / "base"
        self.run = work / "base.trec"
        self.prepare()
        self.hits = read_hits(str(self.run))

    def prepare(self) -> None:
        """Encode and search the collection as it is."""
        corpus = self.write_corpus("base", self.passages)
        topics = self.write_topics("base", self.queries)
        if not (self.vectors / "manifest.json").exists():
            encode(model=self.model, corpus=corpus, output=self.vectors, **COMPUTE)
        if not Path(f"{self.run}.manifest.json").exists():
            search(index=self.vectors, topics=topics, output=self.run, hits=DEPTH, overwrite=True)

    def write_corpus(self, name: str, passages: Sequence[Passage]) -> str:
        """Write a corpus and return its path."""
        path = self.work / f"{name}.jsonl"
        write_passages(path, passages, CorpusFormat.BEIR)
        return str(path)

    def write_topics(self, name: str, queries: Sequence[Query]) -> str:
        """Write queries, with their further fields, and return their path."""
        path = self.work / f"{name}-queries.jsonl"
        write_queries(path, queries, TopicsFormat.BEIR)
        return str(path)

    def found_pairs(self, count: int) -> Pairs:
        """Return queries whose relevant passage is among the first hits; each passage once."""
        pairs: Pairs = {}
        taken: set[str] = set()
        for query in self.queries:
            for docid in self.grades[query.qid]:
                rank = rank_of(self.hits[query.qid], docid)
                is_found = rank is not None and rank <= K
                if is_found and docid not in taken and query.qid not in pairs:
                    pairs[query.qid] = docid
                    taken.add(docid)
            if len(pairs) == count:
                break
        return pairs

    def query(self, qid: str) -> Query:
        """Return a query."""
        return next(query for query in self.queries if query.qid == qid)

    def filler(self, words: int, excluded: str) -> str:
        """Return text of other passages, about as many words."""
        parts: list[str] = []
        while sum(map(len, (part.split() for part in parts))) < words:
            passage = self.random.choice(self.passages)
            if passage.title != self.texts[excluded].title:
                parts += split_sentences(passage.text)[:2]
        return " ".join(parts)

    def changed(self, texts: dict[str, str]) -> list[Passage]:
        """Return the corpus with other texts of some passages."""
        return [
            passage._replace(text=texts.get(passage.docid, passage.text))
            for passage in self.passages
        ]

    def analyse(self, name: str, planted: Planted) -> Sequence[MissedPassage]:
        """Search a planted collection, and analyse the planted passages that are missed."""
        run, topics, corpus = self.search_planted(name, planted)
        hits = read_hits(run)
        missed = []
        for qid, docid in planted.pairs.items():
            rank = rank_of(hits.get(qid, []), docid)
            if qid in hits and (rank is None or rank > K):
                missed.append((qid, docid))
        causes = causes_down_to(name.partition("-")[0])
        bm25 = None
        if "words" in causes:
            bm25 = str(self.work / f"{name}-bm25")
            index(type="bm25", corpus=corpus, output=bm25, overwrite=True)
        return self.run_analysis(name, run, topics, corpus, missed[: self.cases], bm25, causes)

    def search_planted(self, name: str, planted: Planted) -> tuple[str, str, str]:
        """Encode, index and search a planted collection; return run, topics and corpus."""
        corpus = self.write_corpus(name, planted.passages)
        encoded = corpus
        if planted.encoded is not None:
            encoded = self.write_corpus(f"{name}-encoded", planted.encoded)
        vectors = self.work / f"{name}-vectors"
        encode(
            model=self.model,
            corpus=encoded,
            output=vectors,
            update=self.vectors,
            overwrite=True,
            **COMPUTE,
        )
        _replace_vectors(vectors, planted.hub_vectors)
        searched = vectors
        if planted.index_options:
            searched = self.work / f"{name}-index"
            index(input=vectors, output=searched, overwrite=True, **planted.index_options)
        queries = planted.queries or self.queries
        topics = self.write_topics(name, [query for query in queries if query.qid in planted.pairs])
        if planted.hub_vectors:  # hubs show where there are many queries
            topics = self.write_topics(name, queries)
        run = str(self.work / f"{name}.trec")
        search(
            index=searched,
            topics=topics,
            output=run,
            overwrite=True,
            **{"hits": DEPTH, **planted.search_options},
        )
        return run, topics, corpus

    def run_analysis(
        self,
        name: str,
        run: str,
        topics: str,
        corpus: str,
        pairs: Sequence[tuple[str, str]],
        bm25: str | None,
        causes: tuple[str, ...] = (),
    ) -> Sequence[MissedPassage]:
        """Analyse pairs of query and passage; return their rows."""
        pair_file = self.work / f"{name}-pairs.txt"
        pair_file.write_text("".join(f"{qid} {docid}\n" for qid, docid in pairs))
        qrels = self.work / f"{name}-qrels.txt"
        lines = []
        for qid, docid in dict(pairs).items():
            lines.append(f"{qid} 0 {docid} 1\n")
        qrels.write_text("".join(lines))
        settings = MissesSettings(
            run=run,
            qrels=str(qrels),
            corpus=corpus,
            topics=topics,
            bm25=bm25,
            pairs=str(pair_file),
            causes=causes,
            most_encoded=0,
            output=str(self.work / f"{name}.csv"),
        )
        return analyze_misses(settings, compute=CPU).passages


def causes_down_to(last: str) -> tuple[str, ...]:
    """Return the causes down to one: those behind it would not be named in its place."""
    names = [cause.name for cause in CAUSES]
    return tuple(names[: names.index(last) + 1])


def count_causes(plant: str, passages: Sequence[MissedPassage], *, without: str = "") -> Counts:
    """Count how planted cases were named; without a cause, as if that had not been tried."""
    planted_cause = plant.partition("-")[0]
    named = 0
    cheaper: Counter[str] = Counter()
    other: Counter[str] = Counter()
    for passage in passages:
        helpful = [cause for cause in (passage.cause, *passage.also) if cause != without]
        first = helpful[0] if helpful else MODEL
        if first == planted_cause:
            named += 1
        elif planted_cause in helpful:
            cheaper[first] += 1
        else:
            other[first] += 1
    return Counts(len(passages), named, cheaper, other)


def _replace_vectors(folder: Path, new_vectors: dict[str, np.ndarray]) -> None:
    """Write other vectors of some passages into a folder of vectors."""
    if not new_vectors:
        return
    opened = open_vectors(str(folder))
    for block in opened.finished:
        docids = opened.ids_of(block).read_text().split()
        file = folder / f"{block.name}.npy"
        vectors = np.load(file)
        for row, docid in enumerate(docids):
            if docid in new_vectors:
                vectors[row] = new_vectors[docid]
        np.save(file, vectors)


# Planting


def plant_absent(study: Study) -> Planted:
    """Take passages out of the index."""
    pairs = study.found_pairs(study.cases)
    docids = set(pairs.values())
    encoded = [passage for passage in study.passages if passage.docid not in docids]
    return Planted(pairs, study.passages, encoded)


def plant_ivf(study: Study) -> Planted:
    """Search one list of an inverted file."""
    pairs = study.found_pairs(20 * study.cases)
    options: dict[str, str | int] = {"factory": "IVF64,Flat"}
    return Planted(pairs, study.passages, index_options=options, search_options={"nprobe": 1})


def plant_pq(study: Study) -> Planted:
    """Quantise vectors to four bytes."""
    pairs = study.found_pairs(20 * study.cases)
    return Planted(pairs, study.passages, index_options={"factory": "PQ8x4"})


def plant_hubs(study: Study) -> Planted:
    """Add vectors near all queries, three times as long as others."""
    pairs = study.found_pairs(study.cases)
    hubs = [Passage(f"hub{number}", f"Page {number} of the site.", "") for number in range(HUBS)]
    encoder = TextEncoder(study.model, compute=CPU)
    mean = encoder.encode_queries(study.queries[:300]).mean(axis=0)
    unit = mean / np.linalg.norm(mean)
    vectors = {hub.docid: (9 + number / 100) * unit for number, hub in enumerate(hubs)}
    return Planted(pairs, [*study.passages, *hubs], hub_vectors=vectors)


def plant_copies(study: Study) -> Planted:
    """Add copies of a hit above the relevant passage, which is not relevant itself."""
    pairs: Pairs = {}
    added: dict[str, Passage] = {}
    copied_docids: set[str] = set()
    for qid, docid in study.found_pairs(20 * study.cases).items():
        above = study.hits[qid][: (rank_of(study.hits[qid], docid) or 1) - 1]
        # an unjudged copy of the relevant passage of a case would be another cause
        others = [hit for hit, _ in above if hit not in pairs.values()]
        if not others or docid in copied_docids:
            continue
        copied = study.texts[others[0]]
        copied_docids.add(copied.docid)
        for number in range(COPIES):
            copy_id = f"{copied.docid}-copy{number}"
            added[copy_id] = copied._replace(docid=copy_id)
        pairs[qid] = docid
        if len(pairs) == study.cases:
            break
    return Planted(pairs, [*study.passages, *added.values()])


def plant_unjudged(study: Study) -> Planted:
    """Add copies of the relevant passage that nobody judged; the judged one has a sentence more."""
    pairs = study.found_pairs(study.cases)
    added = []
    texts = {}
    for docid in pairs.values():
        passage = study.texts[docid]
        for number in range(COPIES):
            added.append(passage._replace(docid=f"{docid}-copy{number}"))
        words = max(3, len(passage.text.split()) // 10)
        texts[docid] = " ".join([passage.text, *study.filler(words, docid).split()[:words]])
    return Planted(pairs, [*study.changed(texts), *added])


def plant_length(study: Study) -> Planted:
    """Put passages behind filler, beyond the limit of the model."""
    pairs = study.found_pairs(study.cases)
    texts = {}
    for docid in pairs.values():
        filler = study.filler(FILLER_TOKENS, docid)
        texts[docid] = f"{filler} {study.texts[docid].text}"
    return Planted(pairs, study.changed(texts))


def plant_fields(study: Study) -> Planted:
    """Move the rarest words of the query into a field `title`, which is not searched.

    Only cases are kept in which the passage is among the first hits of title and text together.
    """
    passages_with: Counter[str] = Counter()
    for passage in study.passages:
        passages_with.update(set(passage.text.lower().split()))
    pairs = study.found_pairs(CANDIDATES * study.cases)
    queries = []
    for qid in pairs:
        words = study.query(qid).text.rstrip("?.").split()
        by_rarity = sorted(words, key=lambda word: passages_with[word.lower()])
        moved = set(by_rarity[: len(words) // 2])
        title = " ".join(word for word in words if word in moved)
        text = " ".join(word for word in words if word not in moved)
        queries.append(Query(qid, text, extra={"title": title}))
    topics = study.write_topics("fields-both", queries)
    run = study.work / "fields-both.trec"
    fields = ["title", "text"]
    search(index=study.vectors, topics=topics, topics_field=fields, output=run, overwrite=True)
    kept: Pairs = {}
    for qid, hits in read_hits(str(run)).items():
        rank = rank_of(hits, pairs[qid])
        if rank is not None and rank <= K:
            kept[qid] = pairs[qid]
    kept_queries = [query for query in queries if query.qid in kept]
    return Planted(kept, study.passages, queries=kept_queries)


def plant_words(study: Study) -> Planted:
    """Ask for a code that stands in the passage, and that the model has never read."""
    pairs = study.found_pairs(study.cases)
    texts = {}
    queries = []
    for number, (qid, docid) in enumerate(pairs.items()):
        code = f"{study.random.choice('qxzv')}{study.random.choice('wkjx')}{7919 * (number + 13)}"
        texts[docid] = f"{study.texts[docid].text} Filed as {code}."
        queries.append(Query(qid, f"which record is {code}"))
    return Planted(pairs, study.changed(texts), queries=queries)


def plant_position(study: Study) -> Planted:
    """Put the passage's sentence nearest to the query behind other texts, within the limit.

    Only cases are kept in which the passage is among the first hits with that sentence in front.
    """
    encoder = TextEncoder(study.model, compute=CPU)
    candidates = study.found_pairs(CANDIDATES * study.cases)
    query_vectors = encoder.encode_queries([study.query(qid) for qid in candidates])
    pairs: Pairs = {}
    texts = {}
    for (qid, docid), query in zip(candidates.items(), query_vectors, strict=True):
        sentences = split_sentences(study.texts[docid].text)
        best = sentences[int((encoder.encode_sentences(sentences) @ query).argmax())]
        rivals = [score for hit, score in study.hits[qid] if hit != docid]
        orders = []
        for words in FILLER_WORDS:
            filler = study.filler(words, docid)
            for text in (f"{best} {filler}", f"{filler} {best}"):
                orders.append(study.texts[docid]._replace(text=text))
        scores = encoder.encode_passages(orders) @ query
        for number in range(0, len(orders), 2):
            front_score, end_score = scores[number : number + 2]
            if front_score > rivals[K - 1] > end_score:
                pairs[qid] = docid
                texts[docid] = orders[number + 1].text
        if len(pairs) == study.cases:
            break
    return Planted(pairs, study.changed(texts))


def plant_subwords(study: Study) -> Planted:
    """Write neighbouring words of the query as one word with capitals."""
    _, folder = find_model(study.model)
    tokenizer = load_tokenizer(folder)
    pairs = study.found_pairs(20 * study.cases)
    queries = []
    for qid in pairs:
        words = study.query(qid).text.rstrip("?").split()
        glued = "".join(word[:1].upper() + word[1:].lower() for word in words if word.isalnum())
        tokens = tokenizer(glued, add_special_tokens=False)["input_ids"]
        if len(tokens) >= MANY_SUBWORDS:
            queries.append(Query(qid, glued))
    kept = {query.qid: pairs[query.qid] for query in queries}
    return Planted(kept, study.passages, queries=queries)


PLANTS: dict[str, Callable[[Study], Planted]] = {
    "absent": plant_absent,
    "approximate-ivf": plant_ivf,
    "approximate-pq": plant_pq,
    "hub": plant_hubs,
    "copies": plant_copies,
    "unjudged": plant_unjudged,
    "length": plant_length,
    "fields": plant_fields,
    "words": plant_words,
    "position": plant_position,
    "subwords": plant_subwords,
}


def controls(study: Study) -> Iterator[tuple[str, Counter[str]]]:
    """Yield the causes of first hits, which have none, and of passages drawn further down."""
    corpus = str(study.work / "base.jsonl")
    topics = str(study.work / "base-queries.jsonl")
    bm25 = str(study.work / "control-bm25")
    index(type="bm25", corpus=corpus, output=bm25, overwrite=True)
    draws = {f"{CONTROLS} hits of ranks 1 to 10": (0, K), "drawn from ranks 11 to 100": (K, DEPTH)}
    for name, (first, last) in draws.items():
        pairs = []
        for query in study.queries[:CONTROLS]:
            docid, _ = study.random.choice(study.hits[query.qid][first:last])
            pairs.append((query.qid, docid))
        passages = study.run_analysis("control", str(study.run), topics, corpus, pairs, bm25)
        yield name, Counter(passage.cause for passage in passages if passage.cause not in NO_CAUSE)


def main() -> None:
    """Plant, analyse, and print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--collection", default="squad")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--only", default="", help="names of plants, or controls, by commas")
    parser.add_argument("--work", type=Path, help="a folder that keeps the vectors")
    arguments = parser.parse_args()
    logging.getLogger("denserk").setLevel(logging.ERROR)
    names = arguments.only.split(",") if arguments.only else [*PLANTS, "controls"]
    with tempfile.TemporaryDirectory() as scratch:
        work = arguments.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        study = Study(arguments.data, arguments.collection, arguments.model, work, arguments.cases)
        print("planted\tBM25\tcases\tnamed\tcheaper\tother\tright", flush=True)
        for name, plant in PLANTS.items():
            if name not in names:
                continue
            planted = plant(study)
            passages = study.analyse(name, planted)
            cause = name.partition("-")[0]
            labels = {"not needed": ""}  # what BM25 is, and the cause that is left out
            if cause == "words":
                labels = {"given": ""}
            elif "words" in causes_down_to(cause):
                labels = {"given": "", "none": "words"}
            for label, without in labels.items():
                counts = count_causes(name, passages, without=without)
                print("\t".join([name, label, *counts.cells]), flush=True)
        if "controls" in names:
            for name, causes in controls(study):
                count = sum(causes.values())
                shown = ", ".join(f"{cause} {number}" for cause, number in causes.most_common())
                print(f"{name}: {count} of {CONTROLS} are given a cause: {shown or '-'}")


if __name__ == "__main__":
    main()
