#!/usr/bin/env bash
# coCondenser: Condenser pre-training, contrastive pre-training on spans of the target corpus, then Condenser's two rounds.
# Luyu Gao and Jamie Callan, "Unsupervised Corpus Aware Language Model Pre-training for Dense Passage Retrieval", 2022.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
recipe_options cocondenser "$@"

case $scale in
  small)
    general=$corpus
    first=("${pretraining[@]}" --max-length 48 --batch-size 16)
    second=("${pretraining[@]}" --max-length 32 --batch-size 16)
    round=(--representation cls --no-l2-norm --group-size 2 --lr 1e-4 "${training[@]}")
    ;;
  full)
    model=${model:-bert-base-uncased} general=irds:dpr-w100 text=${text:-irds:msmarco-document}
    first=(--cache-chunk-size 32)
    second=(--cache-chunk-size 256)
    round=(--preset cocondenser-marco)
    ;;
esac

bm25
heading "Pre-training: Condenser"
pretrain condenser --objective condenser --model "$model" --corpus "$general" "${first[@]}"
heading "Pre-training: coCondenser, from Condenser's weights and head"
pretrain cocondenser --objective cocondenser --model "$own/models/condenser" --corpus "$text" "${second[@]}"
two_rounds "$own/models/cocondenser" round1 round2
if ((ablations)); then
  two_rounds "$own/models/condenser" condenser1 condenser2
fi
show
