#!/usr/bin/env bash
# A small Aggretriever, trained from MiniLM on questions of SQuAD and Natural Questions, and its figures. What is there
# is not made again.
#
#   bash docs/small-aggretriever.sh --data DIR --runs DIR
#
# DATA has the folders squad, nq-qed, scifact, nfcorpus, cranfield and fairytaleqa in BEIR layout. RUNS/aggretriever-minilm is the
# model; RUNS/COLLECTION/figures.txt compares it with BM25 and MiniLM.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../tests/environment.sh"
source "$(dirname "${BASH_SOURCE[0]}")/options.sh"

read_options "data runs" "$@"
environment cpu,bm25,demo
cd "$repository"
export HF_HUB_OFFLINE=1
model=$runs/aggretriever-minilm

denserk() {
  echo "\$ denserk $*" >&2
  command denserk "$@" --overwrite --quiet
}

bm25_index() {  # COLLECTION
  [ -e "$runs/$1/bm25/manifest.json" ] ||
    denserk index --type bm25 --corpus "$data/$1/corpus.jsonl.gz" --output "$runs/$1/bm25"
}

training_data() {  # COLLECTION: its training questions, each with two wrong passages that BM25 ranks high
  [ -e "$runs/$1/train.jsonl" ] && return
  bm25_index "$1"
  denserk search --index "$runs/$1/bm25" --topics "$data/$1/queries.jsonl.gz" --qrels "$data/$1/qrels/train.tsv" --hits 50 \
    --output "$runs/$1/train.trec"
  denserk mine-negatives --topics "$data/$1/queries.jsonl.gz" --qrels "$data/$1/qrels/train.tsv" --run "$runs/$1/train.trec" \
    --corpus "$data/$1/corpus.jsonl.gz" --depth 30 --num-negatives 2 --output "$runs/$1/train.jsonl"
}

train() {
  [ -e "$model/model.safetensors" ] && return
  training_data squad
  training_data nq-qed
  cat "$runs"/{squad,nq-qed}/train.jsonl >"$runs/train.jsonl"
  denserk finetune --model minilm --representation agg --set mlm-head=none --cls-dim 128 --agg-dim 256 --no-l2-norm \
    --train-data "$runs/train.jsonl" --batch-size 32 --group-size 2 --max-steps 240 --lr 5e-5 --temperature 1 --bf16 \
    --query-max-length 32 --passage-max-length 96 --set license=cc-by-sa-4.0 --output "$model"
}

dense_run() {  # COLLECTION SPLIT MODEL NAME
  local at=$runs/$1
  [ -e "$at/$4.trec" ] && return
  denserk encode --model "$3" --corpus "$data/$1/corpus.jsonl.gz" --passage-max-length 256 --output "$at/$4"
  denserk search --index "$at/$4" --topics "$topics" --qrels "$data/$1/qrels/$2.tsv" --hits 100 --output "$at/$4.trec"
}

evaluate() {  # COLLECTION SPLIT
  local at=$runs/$1 topics
  topics=$(echo "$data/$1"/queries.jsonl*)
  bm25_index "$1"
  [ -e "$at/bm25.trec" ] ||
    denserk search --index "$at/bm25" --topics "$topics" --qrels "$data/$1/qrels/$2.tsv" --hits 100 --output "$at/bm25.trec"
  dense_run "$1" "$2" minilm minilm
  dense_run "$1" "$2" "$model" aggretriever
  command denserk eval "$at"/{bm25,minilm,aggretriever}.trec "$data/$1/qrels/$2.tsv" -m nDCG@10 --baseline minilm \
    --format table --quiet >"$at/figures.txt"
  printf '\n%s\n' "$1" && cat "$at/figures.txt"
}

train
evaluate squad dev
evaluate nq-qed dev
for collection in scifact nfcorpus cranfield fairytaleqa; do
  evaluate "$collection" test
done
