#!/usr/bin/env bash
# Builds the wheel and the source archive into dist/, and tries both where nothing else is installed.
#
#   bash tests/release.sh [PYTHON ...]   default: python3.11 python3.12 python3.13
#
# For each Python: a new virtual environment with the wheel, the quickstart of the source archive with the wheel's
# denserk, and its run evaluated. pip's own variables (PIP_EXTRA_INDEX_URL, ...) are honoured. What is made stays in
# build/release; each environment takes some gigabytes with PyTorch for CUDA.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repository"
work=$repository/build/release
pythons=("$@")
[ ${#pythons[@]} -gt 0 ] || pythons=(python3.11 python3.12 python3.13)

new_environment() {  # PYTHON FOLDER
  "$1" -m venv --clear "$2"
  "$2/bin/python" -m pip install --disable-pip-version-check -qq --upgrade pip
}

build_archives() {
  new_environment "${pythons[0]}" "$work/builder"
  "$work/builder/bin/python" -m pip install -qq build twine
  "$work/builder/bin/python" -m build --outdir dist .
  "$work/builder/bin/python" -m twine check --strict "dist/denserk-$version"*
}

try_wheel() {  # PYTHON
  local folder=$work/$1
  new_environment "$1" "$folder/venv"
  "$folder/venv/bin/python" -m pip install -qq "dist/denserk-$version-py3-none-any.whl[cpu,bm25,demo,report]"
  tar -xzf "dist/denserk-$version.tar.gz" -C "$folder"
  rm -rf "$folder/denserk-$version/denserk"  # so that only the wheel's can be imported
  (
    unset PYTHONPATH
    PATH=$folder/venv/bin:$PATH
    [ "$(denserk --version)" = "denserk $version" ]
    bash "$folder/denserk-$version/docs/quickstart.sh" --installed
  )
}

version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' denserk/version.py)
mkdir -p "$work"
build_archives
for python in "${pythons[@]}"; do
  echo "== denserk $version on $("$python" -V)" >&2
  try_wheel "$python"
done
echo "dist/ has denserk $version: the wheel works on ${pythons[*]}" >&2
