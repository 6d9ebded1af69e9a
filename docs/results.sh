#!/usr/bin/env bash
# The tables of docs/results.md on nine small collections; what is there is not made again.
#
#   bash docs/results.sh --data DIR --runs DIR [COLLECTION/SYSTEM ...]   makes runs (default: all), writes the tables
#   bash docs/results.sh --data DIR --runs DIR --check                   compares the tables with the runs
#
# DATA has a folder in BEIR layout for each collection. Models, vectors and runs go to RUNS. Beside a run is what
# made it, SYSTEM.commands: if that has changed here since, the run is rejected.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../tests/environment.sh"

data= runs= check= cells=()
while [ $# -gt 0 ]; do
  case $1 in
    --data | --runs)
      if [ $# -lt 2 ]; then
        echo "error: $1 needs a folder" >&2
        exit 2
      fi
      folder=$(realpath -m "$2")
      case $1 in
        --data) data=$folder ;;
        --runs) runs=$folder ;;
      esac
      shift
      ;;
    --check) check=yes ;;
    */*) cells+=("$1") ;;
    *)
      echo "error: $1 is no option, and no COLLECTION/SYSTEM such as squad/bm25" >&2
      exit 2
      ;;
  esac
  shift
done
if [ -z "$data" ] || [ -z "$runs" ]; then
  echo "error: --data and --runs are needed: bash docs/results.sh --data DIR --runs DIR" >&2
  exit 2
fi
environment cpu,bm25,demo,report
cd "$repository"
export HF_HUB_OFFLINE=1
if [ -n "$check" ]; then
  exec python docs/results.py check "$runs"
fi
known_cells=$(python docs/results.py cells)
for cell in "${cells[@]}"; do
  if ! grep -qxF -- "$cell" <<<"$known_cells"; then
    echo "error: $cell is none of" $known_cells >&2
    exit 2
  fi
done
[ ${#cells[@]} -gt 0 ] || mapfile -t cells <<<"$known_cells"

denserk() {
  echo "\$ denserk $*" >&2
  command denserk "$@" --overwrite --quiet
}

find_hits() {  # INDEX RUN: hits of the test queries
  denserk search --index "$1" --topics "$topics" --qrels "$at/qrels.txt" --hits 100 --output "$2"
}

train_data() {  # MiniLM's own best wrong passages
  [ -e "$at/train.jsonl" ] && return
  make "$collection/minilm"
  denserk search --index "$at/minilm" --topics "$topics" --qrels "$at/train-qrels.txt" --hits 50 --output "$at/train.trec"
  denserk mine-negatives --topics "$topics" --qrels "$at/train-qrels.txt" --run "$at/train.trec" --corpus "$corpus" \
    --depth 30 --num-negatives 4 --output "$at/train.jsonl"
}

trained() {  # SYSTEM OPTION...: fine-tunes MiniLM for 48 steps, encodes, searches
  local name=$1 && shift
  train_data
  [ -e "$at/$name.model/model.safetensors" ] ||
    denserk finetune --model "$minilm" --train-data "$at/train.jsonl" --batch-size 32 --group-size 2 --max-steps 48 --bf16 \
      --query-max-length 32 --passage-max-length 96 "$@" --output "$at/$name.model"
  denserk encode --model "$at/$name.model" --corpus "$corpus" --passage-max-length 256 --dtype float32 --output "$at/$name"
  find_hits "$at/$name" "$at/$name.trec"
}

bm25() {
  denserk index --type bm25 --corpus "$corpus" --output "$at/bm25"
  find_hits "$at/bm25" "$at/bm25.trec"
}

minilm() {
  denserk encode --model "$minilm" --corpus "$corpus" --dtype float32 --output "$at/minilm"
  find_hits "$at/minilm" "$at/minilm.trec"
}

hybrid() {
  make "$collection/bm25" "$collection/minilm"
  denserk fuse "$at/bm25.trec" "$at/minilm.trec" --method linear --weights 0.3,0.7 --output "$at/hybrid.trec"
}

finetuned() { trained finetuned --representation mean --temperature 0.05 --lr 5e-5; }
cls() { trained cls --representation cls --no-l2-norm --lr 1e-4; }
agg() { trained agg --representation agg --set mlm-head=none --cls-dim 128 --agg-dim 256 --no-l2-norm --lr 1e-4; }
mlr() { trained mlr --representation mlr --reduction self-contrastive --no-l2-norm --lr 1e-4; }

rerank() {
  train_data
  [ -e "$at/rerank.model/model.safetensors" ] ||
    denserk finetune --model "$minilm" --representation cross-encoder --train-data "$at/train.jsonl" --batch-size 16 --group-size 4 \
      --max-steps 96 --lr 1e-4 --query-max-length 32 --pair-max-length 128 --bf16 --output "$at/rerank.model"
  denserk rerank --model "$at/rerank.model" --run "$at/minilm.trec" --topics "$topics" --corpus "$corpus" --depth 20 \
    --output "$at/rerank.trec"
}

commands_of() {  # SYSTEM: the functions above that its run is made by
  declare -f find_hits train_data trained bm25 minilm "$1"
}

make() {  # COLLECTION/SYSTEM...: their runs, unless they are there
  local cell collection system at topics corpus commands
  for cell in "$@"; do
    collection=${cell%/*} system=${cell#*/}
    at=$runs/$collection corpus=$(echo "$runs/$collection"/corpus*) topics=$(echo "$runs/$collection"/queries*)
    commands=$(commands_of "$system")
    if [ -e "$at/$system.commands" ] && [ "$commands" != "$(cat "$at/$system.commands")" ]; then
      echo "error: $at/$system.trec was made by other commands: see $at/$system.commands" >&2
      echo "  move these away, with the model and the vectors of $system, to make it again" >&2
      exit 1
    fi
    if [ ! -e "$at/$system.trec" ]; then
      echo "$commands" >"$at/$system.commands"
      "$system"
    fi
  done
}

SECONDS=0
mkdir -p "$runs"
python docs/results.py prepare "$data" "$runs"
minilm=$runs/all-MiniLM-L6-v2
if [ -e "$minilm" ] && [ ! -L "$minilm" ]; then
  echo "error: $minilm is a folder or a file; a link is put there: move it away, or give another --runs" >&2
  exit 2
fi
ln -sfn "$(python docs/quickstart/model.py)" "$minilm"
make "${cells[@]}"
python docs/results.py write "$runs"
echo "Done in $SECONDS s." >&2
