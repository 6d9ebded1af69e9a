#!/usr/bin/env bash
# Condenser: pre-training; a round with BM25 negatives; a round with BM25 and mined negatives, from the pre-trained weights.
# Luyu Gao and Jamie Callan, "Condenser: a Pre-training Architecture for Dense Retrieval", 2021.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
recipe_options condenser "$@"

case $scale in
  small)
    pretraining+=(--max-length 48 --batch-size 16)
    round=(--representation cls --no-l2-norm --group-size 2 --lr 1e-4 "${training[@]}")
    few=(--train-queries 100) more=(--train-queries 400)
    ;;
  full)
    model=${model:-bert-base-uncased} text=${text:-irds:dpr-w100}
    pretraining=(--cache-chunk-size 32)
    round=(--preset condenser-marco)
    few=(--train-queries 1000 --epochs 40) more=(--train-queries 10000 --epochs 40)
    ;;
esac

# low_data MODEL PREFIX: the stages with few training queries.
low_data() {
  heading "Few training queries"
  train "$2few" --model "$1" --train-data "$own/data/bm25.jsonl" "${round[@]}" "${few[@]}"
  retrieve "$2few"
  train "$2more" --model "$1" --train-data "$own/data/bm25.jsonl" "${round[@]}" "${more[@]}"
  retrieve "$2more"
}

bm25
heading "Pre-training"
pretrain pretrained --objective condenser --model "$model" --corpus "$text" "${pretraining[@]}"
two_rounds "$own/models/pretrained" round1 round2
if ((ablations)); then
  two_rounds "$model" plain1 plain2
  low_data "$own/models/pretrained" ''
  low_data "$model" plain-
fi
show
