"""Draw what a command prints on a terminal of 80 columns.

    python docs/pictures/terminal.py FILE.svg COMMAND

The command runs in a shell, in the present folder. Its standard output is a terminal; messages on
standard error are not in the picture.
"""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

COLUMNS = 80
FONT_FACES = re.compile(r"@font-face \{.*?\}", re.DOTALL)  # that a browser would fetch


def output_on_a_terminal(command: str) -> str:
    """Return what a command writes to a terminal, with its colours."""
    reader, terminal = pty.openpty()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    process = subprocess.Popen(["bash", "-c", command], stdout=terminal, env=environment)
    os.close(terminal)
    written = b""
    while chunk := read_chunk(reader):
        written += chunk
    if process.wait() != 0:
        raise SystemExit(f"error: status {process.returncode} of {command}")
    return written.decode().replace("\r\n", "\n")


def read_chunk(reader: int) -> bytes:
    """Read some output; nothing once the command has closed the terminal."""
    try:
        return os.read(reader, 65536)
    except OSError:
        return b""


def draw(path: Path, command: str) -> None:
    """Run a command and write its picture."""
    output = output_on_a_terminal(command)
    with Path(os.devnull).open("w") as nowhere:
        console = Console(width=COLUMNS, record=True, file=nowhere, force_terminal=True)
        console.print(Text.assemble(("$ ", "bold green"), command.replace("\n", "\n    ")))
        console.print(Text.from_ansi(output))
    svg = console.export_svg(title="denserk", theme=DIMMED_MONOKAI, unique_id=path.stem)
    path.write_text(FONT_FACES.sub("", svg).replace("Fira Code, ", ""), "utf-8")


if __name__ == "__main__":
    draw(Path(sys.argv[1]), sys.argv[2])
