# Sourced, not run: the repository's own virtual environment, .venv, at the versions of tests/constraints.txt.
#
#   environment EXTRAS [PACKAGE ...]    installs denserk[EXTRAS] and the packages, once; puts .venv/bin first on PATH
#
# What is installed is remembered in .venv, and done again only when pyproject.toml or the constraints change.
# PYTHON chooses the interpreter; pip's own variables (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL, ...) are honoured.
# A PyTorch that .venv or the interpreter already has is used, whatever its version, if denserk supports it.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

in_range() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if in_range "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  echo "error: ${PYTHON:-python3} is not Python 3.11, 3.12 or 3.13" >&2
  echo "  install one, or name it: PYTHON=/path/to/python3.11 bash $0" >&2
  return 1
}

moved() {  # the commands of an environment name its folder, so that one does not survive a move
  [ -e "$1/bin/pip" ] && ! head -n 2 "$1/bin/pip" | grep -qF "$1/"
}

installed_torch() {  # prints the version of a supported torch and the folder that holds it, or nothing
  "$1" - "$repository/pyproject.toml" 2>/dev/null <<'END'
import re, sys
from importlib.metadata import distribution
from pathlib import Path

torch = distribution("torch")
oldest = re.search(r'"torch>=([\d.]+)"', Path(sys.argv[1]).read_text("utf-8"))[1]
first_two = lambda version: [int(number) for number in re.findall(r"\d+", version)[:2]]
if first_two(torch.version) >= first_two(oldest):
    print(torch.version, torch.locate_file("").resolve())
END
  true
}

environment() {
  local extras=$1 venv=$(realpath -m "$repository/.venv") constraints=$repository/tests/constraints.txt files stamp python torch
  shift
  if [ -x "$venv/bin/python" ] && "$venv/bin/python" -c '' 2>/dev/null && ! in_range "$venv/bin/python"; then
    echo "error: $venv is of $("$venv/bin/python" -V), and 3.11, 3.12 or 3.13 is needed; remove it" >&2
    return 1
  fi
  if ! in_range "$venv/bin/python" || moved "$venv"; then
    python=$(find_python) || return 1
    echo "Making a virtual environment in $venv" >&2
    "$python" -m venv --clear "$venv" || {
      echo "error: $python cannot make virtual environments; Debian has them in python3-venv" >&2
      return 1
    }
    torch=$(installed_torch "$python")
    if [ -n "$torch" ]; then  # a .pth file adds its folder behind the environment's own
      echo "${torch#* }" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
    fi
  fi
  files=$(cat "$repository/pyproject.toml" "$constraints" | cksum | tr -cd 0-9)
  stamp=$venv/installed-$files/$(echo "$extras $*" | tr -c 'a-z0-9\n' -)
  if [ ! -e "$stamp" ]; then
    echo "Installing denserk[$extras]${*:+ and $*}: some minutes the first time" >&2
    torch=$(installed_torch "$venv/bin/python")
    torch=${torch%% *}
    if [ -n "$torch" ]; then
      echo "Using PyTorch $torch, which is installed" >&2
      if ! grep -qxF "torch==${torch%%+*}" "$constraints"; then  # another version needs other triton and setuptools
        { echo "torch==$torch" && grep -vE '^(torch|triton|setuptools)==' "$constraints"; } >"$venv/constraints.txt"
        constraints=$venv/constraints.txt
      fi
    fi
    local pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input install -qq -c "$constraints")
    "${pip[@]}" torch 'flit_core>=3.12' || return 1
    "${pip[@]}" --no-build-isolation -e "$repository[$extras]" "$@" || return 1
    find "$venv" -maxdepth 1 -name 'installed-*' ! -name "installed-$files" -exec rm -rf {} +
    mkdir -p "$(dirname "$stamp")"
    touch "$stamp"
  fi
  PATH=$venv/bin:$PATH
}
