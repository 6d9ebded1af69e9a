"""Canary vectors: planted faults that are named, distances of equal models, and the start-up.

    python -m tests.benchmarks.canary_faults --model FOLDER [--rounds 9]

FOLDER is a BERT such as all-MiniLM-L6-v2. Prints three tables; ends with status 1 for a fault that
is not named by its stage, or a false alarm.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from denserk.config.encoding import Backend, ComputeSettings, DtypeChoice, ModelLayout
from denserk.errors import DenserkError, MismatchError
from denserk.io.canary import PASSAGE, QUERY
from denserk.models import processor
from denserk.models.canary import check_start, first_difference
from denserk.models.layouts import convert_model
from denserk.models.precision import certificate_texts
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage
from denserk.reporting import print_table
from tests.support.canary_faults import FAULTS, REPRESENTATION, TEXT

# dtype, backend and int8 of the ways of computing
WAYS = (
    ("float32", "torch", False),
    ("float32", "openvino", False),
    ("bfloat16", "torch", False),
    ("bfloat16", "openvino", False),
    ("float32", "openvino", True),
)


def compute_by(dtype: str, backend: str) -> ComputeSettings:
    """Return the settings of a way of computing on the CPU."""
    return ComputeSettings(device="cpu", dtype=DtypeChoice(dtype), backend=Backend(backend))


def starts(encoder: TextEncoder) -> str:
    """Return the stage that encode or search would name, or "starts"."""
    for side in (QUERY, PASSAGE):
        try:
            check_start(encoder.canary, encoder.canary_side(side), "model", texts_at_once=2)
        except MismatchError as error:
            return str(error).partition("differs is ")[2].partition(":")[0]
    return "starts"


def planted_faults(model: Path, scratch: Path) -> bool:
    """Print for each fault what doctor and the start of encode name; return whether all fit."""
    rows = []
    all_named = True
    for number, fault in enumerate(FAULTS):
        folder = shutil.copytree(model, scratch / f"fault-{number}")
        fault.plant(folder)
        encoder = TextEncoder(str(folder), compute=compute_by("float32", "openvino"))
        comparisons = encoder.compare_with_canary()
        difference = first_difference(comparisons)
        named = "none" if difference is None else difference.stage.value
        all_named = all_named and named == fault.stage
        in_bfloat16 = TextEncoder(str(folder), compute=compute_by("bfloat16", "openvino"))
        rows.append((fault.name, fault.stage.value, named, starts(encoder), starts(in_bfloat16)))
        shutil.rmtree(folder)
    print_table(("fault", "stage", "doctor", "encode in float32", "encode in bfloat16"), rows)
    return all_named


def equal_models(model: Path) -> bool:
    """Print the distances of the unchanged model by each way; return whether none is an alarm."""
    rows = []
    quiet = True
    texts = [Passage(str(n), text) for n, text in enumerate(certificate_texts() * 20)]
    for dtype, backend, int8 in WAYS:
        name = "int8" if int8 else dtype
        try:
            encoder = TextEncoder(str(model), compute=compute_by(dtype, backend))
            if int8:
                encoder.int8 = encoder.quantize(PASSAGE, texts)
        except DenserkError as error:
            rows.append((name, backend, "-", "-", str(error)[:60]))
            continue
        comparisons = encoder.compare_with_canary()
        distances = [distance for of_kind in comparisons for distance in of_kind.distances]
        difference = first_difference(comparisons)
        verdict = "as saved" if difference is None else difference.stage.value
        quiet = quiet and difference is None
        tolerance = f"{comparisons[0].tolerance:.0e}"
        rows.append((name, backend, f"{np.max(distances):.1e}", tolerance, verdict))
    print_table(("precision", "backend", "1 - cosine", "at most", "verdict"), rows)
    return quiet


def main() -> None:
    """Measure, and fail if a fault is not named or an unchanged model alarms."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    arguments = parser.parse_args()
    print(f"{processor.processor_name()}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch, "model")
        convert_model(arguments.model, model, ModelLayout.DENSERK, REPRESENTATION, TEXT)
        quiet = equal_models(model)
        all_named = planted_faults(model, Path(scratch))
    if not (quiet and all_named):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
