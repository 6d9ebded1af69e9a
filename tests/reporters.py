"""A reporter that keeps what it is told."""

from denserk.reporting import Reporter


class Heard(Reporter):
    """Keeps notes and warnings, oldest first."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        """Keeps a note."""
        self.notes.append(text)

    def warn(self, text: str) -> None:
        """Keeps a warning."""
        self.warnings.append(text)
