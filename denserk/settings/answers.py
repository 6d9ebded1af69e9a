"""Answers in place of judgements: which file has them, how they are matched, what is kept."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from denserk.errors import UsageError
from denserk.settings.options import Settings, option

DEFAULT_ANSWER_MEASURES = ("Success@5", "Success@20", "Success@100")
"""What is measured by answers when nothing is asked for: the top-k accuracies of the papers."""


@dataclass(frozen=True)
class AnswerInput:
    """Questions with answers, and the passages they are looked for in."""

    answers: str | None = option(
        None, metavar="FILE|DIR|-", shown_default="the judgements that are named"
    )
    """Questions with their answers, in place of judgements: a hit is relevant where its text
    contains one. DPR's .qa.csv, JSON lines, or a folder of EntityQuestions."""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME|-", shown_default="none")
    """The passages that the runs name: --answers looks into them, --report shows some."""

    def __post_init__(self) -> None:
        """Refuses answers without passages."""
        if self.answers is not None and self.corpus is None:
            raise UsageError(
                f"--answers {self.answers} are looked for in the texts of hits, and there is no "
                "corpus",
                "add --corpus, the passages that were searched",
            )


@dataclass(frozen=True)
class AnswerSettings(Settings):
    """How answers are matched, and what is written of it."""

    topk: tuple[int, ...] = option((), metavar="K,K,...", shown_default="5,20,100", rare=True)
    """Top-k accuracy at these depths: 5,20 is -m 'Success@5 Success@20'."""
    regex: bool = False
    """Answers are regular expressions (CuratedTREC)."""
    strict_dpr: bool = option(False, rare=True)
    """An answer without a letter, number or sign matches every passage, as in DPR's own code;
    otherwise it matches none."""
    skip_missing: bool = False
    """Passages that the corpus lacks hold no answer; otherwise they are refused."""
    num_workers: int = option(1, at_least=1)
    """Processes that look for answers."""
    write_dpr_json: str | None = option(None, metavar="FILE", shown_default="none")
    """Also write the questions with their passages as DPR does, for readers such as FiD."""
    write_pyserini_json: str | None = option(None, metavar="FILE", shown_default="none")
    """Also write them as Pyserini does, for its evaluate_dpr_retrieval."""

    def __post_init__(self) -> None:
        """Reject depths below 1, and options that exclude each other."""
        super().__post_init__()
        if any(depth < 1 for depth in self.topk):
            raise UsageError(f"--set topk={','.join(map(str, self.topk))}: at least 1 is expected")
        if self.regex and self.strict_dpr:
            raise UsageError(
                "--strict-dpr is about answers that are words; with --regex they are patterns",
                "leave one of them out",
            )
        if "-" in self.outputs:
            raise UsageError("standard output (-) is for the measures", "name a file to write to")

    @property
    def outputs(self) -> tuple[str, ...]:
        """The files that are asked for."""
        both = (self.write_dpr_json, self.write_pyserini_json)
        return tuple(path for path in both if path is not None)


MATCHING = AnswerSettings()
"""DPR's matching, by words, in this process."""


def refuse_idle(settings: Sequence[Any], why: str, hint: str) -> None:
    """Refuses options that were given and would do nothing.

    Args:
        settings: settings objects, all of whose options would.
        why: what they are for.
        hint: what to do.

    Raises:
        UsageError: a field differs from its default; all such options are named.

    >>> refuse_idle([AnswerSettings(regex=True)], "for --answers", "add it")
    Traceback (most recent call last):
    denserk.errors.UsageError: --regex: for --answers
    """
    given = [
        "--" + field.name.replace("_", "-")
        for group in settings
        for field in dataclasses.fields(group)
        if getattr(group, field.name) != field.default
    ]
    if given:
        raise UsageError(f"{', '.join(given)}: {why}", hint)
