#!/usr/bin/env bash
# Aggretriever: fine-tuning with BM25 negatives, then two epochs with negatives mined by the model itself (section 5.3).
# Sheng-Chieh Lin, Minghan Li and Jimmy Lin, "Aggretriever: A Simple Approach to Aggregate Textual Representations for
# Robust Dense Passage Retrieval", 2023.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
recipe_options aggretriever "$@"

case $scale in
  small)
    wide=256 narrow=128
    agg=(--representation agg --cls-dim "$narrow" --agg-dim "$wide" --set mlm-head=none --no-l2-norm --group-size 2)
    round=("${agg[@]}" --lr 1e-4 "${training[@]}")
    again=("${agg[@]}" --lr 5e-5 "${training[@]}")
    few=(--train-queries 100) more=(--train-queries 400)
    ;;
  full)
    model=${model:-distilbert-base-uncased}
    round=(--preset aggretriever-marco)
    again=(--preset aggretriever-hard-negatives)
    wide=640 narrow=128
    few=(--train-queries 1000 --epochs 40) more=(--train-queries 10000 --epochs 40)
    ;;
esac

bm25
heading "round1: BM25 negatives"
train round1 --model "$model" --train-data "$own/data/bm25.jsonl" "${round[@]}"
retrieve round1 train
heading "round2: negatives mined with round1 only, continuing from its weights"
mine round1 round1
train round2 --model "$own/models/round1" --train-data "$own/data/round1.jsonl" "${again[@]}"
retrieve round2

if ((ablations)); then
  both=$((wide + narrow))
  variant cls --representation cls
  variant wide-cls --cls-dim "$wide" --agg-dim "$narrow"
  variant no-cls --cls-dim 0 --agg-dim "$both"
  variant both-wide --cls-dim "$both" --agg-dim "$both"
  variant both-narrow --cls-dim "$narrow" --agg-dim "$narrow"
  variant unpruned --cls-dim 0 --set agg-kind=none
  variant no-weight --set term-weight=one
  variant no-mlm --set mlm-head=none
  variant plus --set agg-kind=plus
  variant linear --set agg-kind=linear
  variant average --set agg-kind=average
  variant repbert --representation mean
  variant few "${few[@]}"
  variant more "${more[@]}"
fi
show
