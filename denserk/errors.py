"""Everything denserk refuses, as one tree.

    DenserkError                exit status 1: could not be done
    ├── UsageError              exit status 2: the command line itself asks for the impossible
    │   └── MissingExtraError   a package is needed that only an extra brings
    ├── InputError              a file does not hold what it should: file, line, found, expected
    ├── MismatchError           two inputs were not made for each other (model, vectors, index, run)
    ├── OutputError             an output cannot be written: no room, no permission, in the way
    ├── ServerError             a server does not answer, or does not do what it is asked
    ├── ModelError              a model cannot be loaded, or cannot do what is asked of it
    └── GateError               a measure stayed under the minimum that was asked for

`Interrupted` stands apart: a signal ended the command.

Catch `DenserkError` for all of them. A message is one sentence of what was wrong, with the value;
`hint` is what to type or change next.
"""

from pathlib import Path
from typing import Any, ClassVar


class DenserkError(Exception):
    """Base of every refusal.

    Args:
        message: what was wrong, with the value found.
        hint: what would be right, or the next command to type; printed on a line of its own.
    """

    exit_status = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        """Lets another process be told."""
        return _again, (type(self), self.message, self.__dict__)


def _again(kind: type[DenserkError], message: str, said: dict[str, Any]) -> DenserkError:
    error = kind.__new__(kind, message)
    error.__dict__.update(said)
    return error


class UsageError(DenserkError):
    """Options that contradict each other, or name what does not exist."""

    exit_status = 2


class MissingExtraError(UsageError):
    """A package is needed that the core does not install."""


class InputError(DenserkError):
    """A file that cannot be read as what it should be.

    Args:
        path: the file; "-" is standard input.
        line: 1-based line number, where lines mean something.
        found: what is there.
        expected: what should be there.
        hint: what to type or change next.

    >>> str(InputError("run.trec", 3, "5 columns", "6 columns: qid Q0 docid rank score tag"))
    'run.trec, line 3: found 5 columns; expected 6 columns: qid Q0 docid rank score tag'
    """

    def __init__(
        self,
        path: str | Path,
        line: int | None,
        found: str,
        expected: str,
        hint: str | None = None,
    ) -> None:
        name = "standard input" if str(path) == "-" else str(path)
        where = name if line is None else f"{name}, line {line}"
        super().__init__(f"{where}: found {found}; expected {expected}", hint)
        self.path = path
        self.line = line


class MismatchError(DenserkError):
    """Two inputs that were not made for each other."""


class OutputError(DenserkError):
    """An output that cannot be written."""


class ServerError(DenserkError):
    """A server that does not answer, or refuses what it is asked."""


class ModelError(DenserkError):
    """A model that cannot be loaded, or cannot do what is asked of it."""


class GateError(DenserkError):
    """A measure below the minimum asked for."""


class Interrupted(BaseException):
    """A signal that ends the command; raised in the main thread, so that files are cleaned up.

    Compiled code of a library may turn it into an error of its own; `received` is it all the same.

    Args:
        signum: SIGINT, SIGTERM or SIGHUP.
    """

    received: ClassVar["Interrupted | None"] = None

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum
        self.kept = ""  # outputs that --resume can continue
