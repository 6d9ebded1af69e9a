#!/usr/bin/env bash
# The figures of docs/howto/no-labels.md: MiniLM trained on queries without judgments. What is there is not made again.
#
#   bash docs/no-labels.sh --data DIR --runs DIR [--seeds '1 2 3']
#
# DATA has the folders scifact and fairytaleqa in BEIR layout. Models, vectors and runs go to RUNS; measures are printed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../tests/environment.sh"
source "$(dirname "${BASH_SOURCE[0]}")/options.sh"

seeds='1 2 3'
read_options "data runs seeds" "$@"
environment cpu,bm25,demo
cd "$repository"
export HF_HUB_OFFLINE=1

denserk() {
  echo "\$ denserk $*" >&2
  command denserk "$@" --overwrite --quiet
}


encode() {  # MODEL NAME: encodes the corpus, and searches
  denserk encode --model "$1" --corpus "$corpus" --passage-max-length 128 --dtype bfloat16 --output "$at/$2.vectors"
  denserk search --index "$at/$2.vectors" --topics "$topics" --qrels "$qrels" --hits 100 --output "$at/$2.trec"
  rm -r "$at/$2.vectors"
}

bm25() {
  denserk index --type bm25 --corpus "$corpus" --output "$at/bm25"
  denserk search --index "$at/bm25" --topics "$topics" --qrels "$qrels" --hits 100 --output "$at/bm25.trec"
}

minilm() { encode "$minilm" minilm; }

trained() {  # WAY SEED [OPTION...]: generates queries, fine-tunes for 32 steps, encodes, searches
  local name=$1-$2 ways=$1 seed=$2
  shift 2
  [ "$ways" != all ] || ways=$all
  [ -e "$at/$name.jsonl" ] ||
    denserk generate --corpus "$corpus" --queries-from "$ways" --num-queries 1 --seed "$seed" "$@" --output "$at/$name.jsonl"
  denserk convert "$at/$name.jsonl" "$at/$name.train.jsonl" --corpus "$corpus"
  [ -e "$at/$name.model/model.safetensors" ] ||
    denserk finetune --model "$minilm" --train-data "$at/$name.train.jsonl" --group-size 1 --batch-size 32 --max-steps 32 --lr 5e-5 \
      --temperature 0.05 --query-max-length 32 --passage-max-length 96 --bf16 --seed "$seed" --output "$at/$name.model"
  encode "$at/$name.model" "$name"
}

make() {  # SYSTEM [ARGUMENT...]: its run, unless it is there
  local name=$1
  [ "$1" != trained ] || name=$2-$3
  [ -e "$at/$name.trec" ] || "$@"
}

use() {  # COLLECTION
  collection=$1 at=$runs/$1 corpus=$(echo "$data/$1"/corpus*) topics=$(echo "$data/$1"/queries*) qrels=$data/$1/qrels/test.tsv
  ways="title span cloze" all=title,span,cloze
  [ "$collection" != fairytaleqa ] || ways="span cloze" all=span,cloze  # its titles are those of whole stories
  mkdir -p "$at"
}

SECONDS=0
mkdir -p "$runs"
minilm=$runs/all-MiniLM-L6-v2
ln -sfn "$(python docs/quickstart/model.py)" "$minilm"
for collection in scifact fairytaleqa; do
  use $collection
  make bm25
  make minilm
done
for seed in $seeds; do
  for collection in scifact fairytaleqa; do
    use $collection
    for way in $ways; do
      make trained "$way" "$seed"
    done
    make trained all "$seed" --round-trip "$at/bm25"
  done
done
for collection in scifact fairytaleqa; do
  use $collection
  command denserk eval "$at"/*.trec "$qrels" --seeds --baseline minilm -m 'nDCG@10 R@100'
done
echo "Done in $SECONDS s." >&2
