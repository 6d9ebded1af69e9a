"""Words that a shell completes: names of presets, models, languages, measures and the like.

Values of enumerations are completed by typer. No word needs an import of torch or numpy. What holds
the words is imported when a shell asks for them.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

Completer = Callable[[str], list[str]]


def _presets() -> Iterable[str]:
    from denserk.config.yaml_files import paper_sections

    return paper_sections("presets")


def _recipes() -> Iterable[str]:
    from denserk.config.yaml_files import paper_sections

    return paper_sections("pretraining")


def _mining() -> Iterable[str]:
    from denserk.config.yaml_files import paper_sections

    return paper_sections("mining")


def _models() -> Iterable[str]:
    from denserk.config.encoding import PUBLISHED

    return PUBLISHED


def _languages() -> Iterable[str]:
    from denserk.config.languages import AUTO, LANGUAGES

    return [AUTO, *(language.name for language in LANGUAGES)]


def _measures() -> Iterable[str]:
    from denserk.config.evaluation import COMMON_MEASURES

    return COMMON_MEASURES


def _baselines() -> Iterable[str]:
    from denserk.config.evaluation import PREVIOUS

    return (PREVIOUS,)


def _benchmarks() -> Iterable[str]:
    from denserk.config.benchmarks import list_benchmarks

    return [name for name, *_ in list_benchmarks()]


# What `OptionSpec.completes` names.
WORDS: Mapping[str, Callable[[], Iterable[str]]] = {
    "presets": _presets,
    "recipes": _recipes,
    "mining": _mining,
    "models": _models,
    "languages": _languages,
    "measures": _measures,
    "baselines": _baselines,
    "benchmarks": _benchmarks,
}


def completer(words: str) -> Completer:
    """Return what completes the beginning of a word: names, and behind them files and folders.

    The shell completes files itself where nothing is returned.
    """

    def complete(incomplete: str) -> list[str]:
        names = [name for name in WORDS[words]() if name.startswith(incomplete)]
        if not names or not incomplete:
            return names
        return names + _paths(incomplete)

    return complete


def setting_completer(names: Iterable[str]) -> Completer:
    """Return what completes the names of settings, with "=" behind them."""
    spelled_names = [f"{name.replace('_', '-')}=" for name in names]

    def complete(incomplete: str) -> list[str]:
        return [name for name in spelled_names if name.startswith(incomplete)]

    return complete


def _paths(incomplete: str) -> list[str]:
    """Return the files and folders whose names begin so, as they are spelled."""
    folder, slash, beginning = incomplete.rpartition("/")
    searched_folder = Path(folder + slash)
    if not searched_folder.is_dir():
        return []
    paths = []
    for item in sorted(searched_folder.iterdir()):
        if item.name.startswith(beginning):
            end = "/" if item.is_dir() else ""
            paths.append(f"{folder}{slash}{item.name}{end}")
    return paths
