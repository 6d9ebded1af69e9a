#!/usr/bin/env bash
# Multi-layer representations (MLR): single-vector models with the self-contrastive loss, in two rounds on MS MARCO.
# Zhongbin Xie and Thomas Lukasiewicz, "Investigating Multi-layer Representations for Dense Passage Retrieval", 2025.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
recipe_options mlr "$@"

case $scale in
  small)
    round=(--representation mlr --set layer-weight=0.1 --untie --no-l2-norm --group-size 2 --lr 1e-4 "${training[@]}")
    again=("${round[@]}")
    all=1,2,3,4,5,6 pairs=("2,6" "4,6")
    ;;
  full)
    model=${model:-Shitao/RetroMAE_MSMARCO}
    mining=(--depth 200 --num-negatives 100 --sampling top)
    round=(--preset mlr-marco)
    again=(--preset mlr-marco-hard-negatives)
    all=1,2,3,4,5,6,7,8,9,10,11,12 pairs=("2,12" "4,12" "6,12" "8,12")
    ;;
esac

bm25
heading "round1: BM25 negatives"
train round1 --model "$model" --train-data "$own/data/bm25.jsonl" "${round[@]}"
retrieve round1 train
heading "round2: negatives mined with round1 only, from the same initial weights"
mine round1 round1
train round2 --model "$model" --train-data "$own/data/round1.jsonl" "${again[@]}"
retrieve round2

if ((ablations)); then
  variant dual-encoder --representation cls
  variant average --reduction average
  variant scalar-mix --reduction scalar-mix
  variant multi-vector --reduction multi-vector
  variant all-layers --layers "$all"
  variant all-average --layers "$all" --reduction average
  variant all-scalar-mix --layers "$all" --reduction scalar-mix
  for layers in "${pairs[@]}"; do
    variant "layers-${layers/,/-}" --layers "$layers"
  done
fi
show
