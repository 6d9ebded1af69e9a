"""The texts of positives and candidates, and the guards that read them."""

from collections import Counter
from collections.abc import Iterable, Sequence

from denserk.data.negatives import Drops, Hit, Likeness, words
from denserk.errors import InputError, UsageError
from denserk.evaluation.answers import AnswerMatcher, PatternMatcher
from denserk.formats.passage_texts import PassageTexts
from denserk.records import Passage, TrainingExample
from denserk.settings.mining import WITHOUT_TEXTS, AnswerBearing, MiningPaths, MiningSettings
from denserk.tasks.mining_queries import MiningQueries, named

Pairs = list[tuple[Hit, Passage]]


class TextGuards:
    """What the texts of hits say of them.

    Args:
        paths: the inputs.
        settings: the guards.
        queries: the queries, with answers and positives.
        drops: counts what is dropped.

    Raises:
        UsageError: a guard needs texts, and there is no corpus; or answers, and there are none.
    """

    def __init__(
        self, paths: MiningPaths, settings: MiningSettings, queries: MiningQueries, drops: Drops
    ) -> None:
        self._settings, self._drops = settings, drops
        default = AnswerBearing.DROP if paths.answers else AnswerBearing.KEEP
        self._bearing = settings.answer_bearing or default
        self._idless = queries.idless > 0
        self.noticed: Counter[str] = Counter()
        self.needed = (
            self._idless
            or settings.compares_texts
            or self._bearing is not AnswerBearing.KEEP
            or settings.teacher is not None
        )
        if self.needed and paths.corpus is None:
            why = "positives have no ids" if self._idless else "a guard reads the texts of hits"
            raise UsageError(f"{why}, and there is no corpus", "add --corpus")
        if self._bearing is not AnswerBearing.KEEP and not queries.answered:
            raise UsageError(
                f"--answer-bearing {self._bearing}: no query has answers",
                "add --answers, a file of questions with their answers",
            )
        self.reads_texts = self.needed or paths.output_format not in WITHOUT_TEXTS

    def divide(self, example: TrainingExample, pairs: Pairs) -> tuple[Pairs, Pairs]:
        """Hits that may be negatives, and hits that become positives.

        Args:
            example: the query, its positives with their texts.
            pairs: its hits and their passages.
        """
        if self._idless or self._settings.compares_texts:
            likeness = Likeness([candidate.text for candidate in example.positives])
            pairs = [pair for pair in pairs if not self._alike(likeness, pair[1].text)]
        if self._bearing is AnswerBearing.KEEP:
            return pairs, []
        matches = self._matcher(example.answers).matches
        bearing = [matches(passage.text) for _, passage in pairs]
        found = [pair for pair, bears in zip(pairs, bearing, strict=True) if bears]
        others = [pair for pair, bears in zip(pairs, bearing, strict=True) if not bears]
        if self._bearing is AnswerBearing.PROMOTE:
            return others, found
        self._drops["answer"] += len(found)
        return others, []

    def _matcher(self, answers: Sequence[str]) -> AnswerMatcher | PatternMatcher:
        self.noticed["queries without an answer"] += not answers
        if self._settings.regex:
            patterns = PatternMatcher(answers)
            self.noticed["answers that are no regular expression"] += len(patterns.broken)
            return patterns
        matcher = AnswerMatcher(answers)
        self.noticed["answers without a word, which match nothing"] += matcher.tokenless
        return matcher

    def _alike(self, likeness: Likeness, text: str) -> bool:
        limit = self._settings.near_duplicate
        found = words(text)
        if self._idless and likeness.equals(found):
            self._drops["positives"] += 1
        elif self._settings.drop_literal and likeness.literal(found):
            self._drops["literal"] += 1
        elif limit is not None and likeness.most_shared(found) >= limit:
            self._drops["near-duplicate"] += 1
        else:
            return False
        return True


def with_texts(example: TrainingExample, texts: PassageTexts) -> TrainingExample:
    """Fills in the texts of positives, and leaves those out that the corpus lacks."""
    bare = [candidate.docid for candidate in example.positives if not candidate.text]
    if not bare:
        return example
    passages = dict(zip(bare, texts.get(bare), strict=True))
    filled = []
    for candidate in example.positives:
        passage = passages.get(candidate.docid)
        if candidate.text:
            filled.append(candidate)
        elif passage is not None:
            filled.append(candidate._replace(text=passage.text, title=passage.title))
    return example._replace(positives=tuple(filled))


def refuse_missing(corpus: str, missing: int, docids: Iterable[str], texts: PassageTexts) -> None:
    """Refuses passages that the corpus lacks, the first few by name.

    Args:
        corpus: names it.
        missing: how many it lacks.
        docids: all ids that are needed.
        texts: what was found.

    Raises:
        InputError: always.
    """
    lacking = (docid for docid in docids if texts.get([docid]) == [None])
    raise InputError(
        corpus,
        None,
        f"no passages with {missing:,} of the ids that runs and training data name "
        f"({named(lacking)})",
        "the corpus that was searched",
        "add --skip-missing to leave such passages out",
    )
