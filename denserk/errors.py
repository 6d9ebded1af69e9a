"""All errors of denserk: one tree below `DenserkError`; `Interrupted` (a signal) is not part of it.

A message is one sentence with the offending value; `hint` says what to type or change.
"""

from pathlib import Path
from typing import ClassVar


class DenserkError(Exception):
    """Base class of all errors: what is wrong, and a hint that is printed on its own line."""

    exit_status = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        # `args` stay the arguments of the class, from which pickle builds it again
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class UsageError(DenserkError):
    """Invalid or contradictory options."""

    exit_status = 2


class MissingOptionError(UsageError):
    """An option that must be given, and is not."""


class MissingExtraError(UsageError):
    """An optional package is not installed."""


class InputError(DenserkError):
    """A file with invalid content; lines count from 1, and "-" is standard input.

    >>> str(InputError("run.trec", 3, "5 columns", "6 columns: qid Q0 docid rank score tag"))
    'run.trec, line 3: found 5 columns; expected 6 columns: qid Q0 docid rank score tag'
    >>> str(InputError("-", None, "nothing", "at least one line"))
    'standard input: found nothing; expected at least one line'
    """

    def __init__(
        self, path: str | Path, line: int | None, found: str, expected: str, hint: str | None = None
    ) -> None:
        name = "standard input" if str(path) == "-" else str(path)
        position = name if line is None else f"{name}, line {line}"
        super().__init__(f"{position}: found {found}; expected {expected}", hint)
        self.path = path
        self.line = line
        self.found = found


class MismatchError(DenserkError):
    """Inputs that do not belong together."""


class NotFiniteError(DenserkError):
    """A vector of an index, by its row, whose score is not a finite number."""

    def __init__(self, row: int) -> None:
        super().__init__(f"the score of vector {row:,} (from 0) is not a finite number")
        self.row = row


class OutputError(DenserkError):
    """An output that cannot be written."""


class BeingWrittenError(DenserkError):
    """An input that another process writes, or has replaced, while it is read."""


class ServerError(DenserkError):
    """A server does not answer or rejects a request."""


class ModelError(DenserkError):
    """A model cannot be loaded or used in this way."""


class MeasureError(DenserkError):
    """A measure that cannot be computed from these judgments and runs."""


class GateError(DenserkError):
    """A measure is below its required minimum."""


class Interrupted(BaseException):
    """A signal that ends the command; raised in the main thread so that files are cleaned up.

    A library may turn it into an error of its own, so it is also kept in `received`.
    """

    received: ClassVar["Interrupted | None"] = None

    def __init__(self, signum: int) -> None:
        self.signum = signum
        self.kept = ""  # files and folders from which --resume can continue

    @classmethod
    def raise_received(cls) -> None:
        """Raise the signal that was received, if any.

        For those who catch a library's error and go on: it may be the signal in disguise.
        """
        if cls.received is not None:
            raise cls.received


def reason_of(error: BaseException, longest: int = 200) -> str:
    r"""Return the beginning of a library's message on one line; the error's class if it has none.

    >>> reason_of(ValueError("no such file:\n  model.bin"))
    'no such file: model.bin'
    >>> reason_of(KeyboardInterrupt())
    'KeyboardInterrupt'
    """
    return " ".join(str(error).split())[:longest] or type(error).__name__


def lack_of_memory(error: BaseException) -> str:
    """Return torch's message if it reports that a GPU or the machine has no memory, else "".

    >>> lack_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
    'CUDA out of memory. Tried to allocate 2 GiB'
    >>> lack_of_memory(RuntimeError("The size of tensor a must match the size of tensor b"))
    ''
    """
    message = str(error).partition("\n")[0].strip()[:200]
    if type(error).__name__ == "OutOfMemoryError":  # torch is not imported for its class
        return message or "out of memory"
    reasons = ("out of memory", "not enough memory", "can't allocate memory", "ALLOC_FAILED")
    if isinstance(error, RuntimeError) and any(reason in str(error) for reason in reasons):
        return message
    return ""
