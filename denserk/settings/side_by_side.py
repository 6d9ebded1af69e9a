"""Several models in one analysis: what each is called, and where table and plot go."""

from pathlib import Path

from denserk.errors import UsageError

PLOTS = (".png", ".pdf", ".svg")
"""Kinds of pictures, by the file's suffix."""


class SideBySide:
    """What the settings of such an analysis have in common; the fields stand in each of them."""

    model: tuple[str, ...]
    output: str
    plot: str | None

    def refuse_outputs(self) -> None:
        """Refuses models without a name of their own, and unknown pictures.

        Raises:
            UsageError: as said.
        """
        names = [label for label, _ in self.labelled]
        if "" in names or "" in (model for _, model in self.labelled):
            raise UsageError("--model LABEL=FOLDER: one of the two is empty")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(
                f"two models are called {', '.join(twice)}", "name them: --model LABEL=FOLDER"
            )
        if self.plot is not None and Path(self.plot).suffix not in PLOTS:
            raise UsageError(f"--plot {self.plot}: it ends in {', '.join(PLOTS)}")
        if self.picture is not None and self.picture == Path(self.output):
            raise UsageError(f"--output {self.output}: table and plot would be one file")

    @property
    def labelled(self) -> list[tuple[str, str]]:
        """Every model's label and name; a label that two folders share gives way to their paths."""
        pairs = [_label(model) for model in self.model]
        names = [Path(m).name or m if label is None else label for label, m in pairs]
        return [
            (model if label is None and names.count(name) > 1 else name, model)
            for name, (label, model) in zip(names, pairs, strict=True)
        ]

    @property
    def picture(self) -> Path | None:
        """Where the plot goes; None beside a table on standard output."""
        if self.plot is not None:
            return Path(self.plot)
        return None if self.output == "-" else Path(self.output).with_suffix(".png")


def _label(model: str) -> tuple[str | None, str]:
    """`LABEL=FOLDER` as its two parts; a path that holds the sign has a slash before it."""
    label, equals, rest = model.partition("=")
    return (label, rest) if equals and "/" not in label else (None, model)
