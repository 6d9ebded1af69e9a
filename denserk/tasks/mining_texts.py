"""Guards that read texts: answers, likeness to the positives."""

from collections.abc import Sequence

from denserk.data.negatives import Drops, Hit
from denserk.data.text_likeness import Likeness
from denserk.errors import UsageError
from denserk.evaluation.answer_matching import AnswerMatcher, PatternMatcher
from denserk.records import Passage, TrainingExample
from denserk.settings.mining import AnswerBearing, MiningPaths, MiningSettings
from denserk.tasks.mining_queries import MiningQueries

Pairs = list[tuple[Hit, Passage]]


class TextGuards:
    """What the texts of hits say of them.

    Args:
        paths: the inputs.
        settings: the guards.
        queries: the queries, with answers and positives.
        drops: counts what is dropped.

    Raises:
        UsageError: a guard needs texts, and there is no corpus.
    """

    def __init__(
        self, paths: MiningPaths, settings: MiningSettings, queries: MiningQueries, drops: Drops
    ) -> None:
        self._settings, self._drops = settings, drops
        default = AnswerBearing.DROP if paths.answers else AnswerBearing.KEEP
        self._answers = settings.answer_bearing or default
        self._idless = queries.idless > 0
        self.needed = (
            self._idless
            or settings.compares_texts
            or self._answers is not AnswerBearing.KEEP
            or settings.teacher is not None
        )
        if self.needed and paths.corpus is None:
            why = "positives have no ids" if self._idless else "a guard reads the texts of hits"
            raise UsageError(f"{why}, and there is no corpus", "add --corpus")

    def divide(self, example: TrainingExample, pairs: Pairs) -> tuple[Pairs, Pairs]:
        """Hits that may be negatives, and hits that become positives."""
        if self._idless or self._settings.compares_texts:
            likeness = Likeness([candidate.text for candidate in example.positives])
            pairs = [pair for pair in pairs if not self._alike(likeness, pair[1].text)]
        if self._answers is AnswerBearing.KEEP or not example.answers:
            return pairs, []
        matches = self._matcher(example.answers).matches
        bearing = [matches(passage.text) for _, passage in pairs]
        found = [pair for pair, bears in zip(pairs, bearing, strict=True) if bears]
        kept = [pair for pair, bears in zip(pairs, bearing, strict=True) if not bears]
        if self._answers is AnswerBearing.PROMOTE:
            return kept, found
        self._drops["answer"] += len(found)
        return kept, []

    def _matcher(self, answers: Sequence[str]) -> AnswerMatcher | PatternMatcher:
        return PatternMatcher(answers) if self._settings.regex else AnswerMatcher(answers)

    def _alike(self, likeness: Likeness, text: str) -> bool:
        limit = self._settings.near_duplicate
        if self._idless and likeness.equals(text):
            self._drops["positives"] += 1
        elif self._settings.drop_literal and likeness.literal(text):
            self._drops["literal"] += 1
        elif limit is not None and likeness.most_shared(text) >= limit:
            self._drops["near-duplicate"] += 1
        else:
            return False
        return True
