"""Failed reads and writes of files as errors for the user."""

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from denserk.errors import InputError, OutputError


@contextmanager
def read_errors(path: str | Path) -> Iterator[None]:
    """Turn a failed read of a file into an `InputError`, also inside of `write_errors`."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(path, None, "nothing", "a file") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        found = f"a compressed file that breaks off ({error})"
        expected = "a whole gzip file"
        raise InputError(path, None, found, expected, "fetch or write it again") from None
    except OSError as error:
        found = f"a file that cannot be read ({error.strerror or error})"
        raise InputError(path, None, found, "a readable file") from None


@contextmanager
def write_errors(path: str | Path) -> Iterator[None]:
    """Turn a failed write into an `OutputError`; a closed pipe passes through."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        if re.fullmatch(r"\d+ requested and \d+ written", reason):  # NumPy's
            reason = "the disk is full, or a limit of sizes is reached"
        hint = "run the command again with room on the disk, or with another --output"
        if isinstance(error, NotADirectoryError):
            hint = "a file stands where one of its folders would be: choose another output"
        raise OutputError(f"{path} cannot be written: {reason}", hint) from error
