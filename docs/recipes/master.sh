#!/usr/bin/env bash
# MASTER: query generation, pre-training, retriever 1, mining, retriever 2, mining, reranker, its scores, distilled
# retriever. Every retriever starts from the pre-trained weights.
# Kun Zhou et al., "MASTER: Multi-task Pre-trained Bottlenecked Masked Autoencoders are Better Dense Retrievers", 2023.
#
# At small scale, --queries-model and --continuation-model name the models that generate queries and continuations;
# without them, MASTER is pre-trained with the three tasks that need no generated text.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
recipe_options master "$@"

case $scale in
  small)
    pretraining+=(--max-length 48 --batch-size 8)
    expansion=(--num-queries 4 --set continuation-max-tokens=48)
    common=(--representation cls --l2-norm --temperature 0.02 --lr 1e-4 "${training[@]}")
    retriever=("${common[@]}" --group-size 2)
    second=("${retriever[@]}")
    teacher=$model depth=10 scoring=("${mining[@]}")
    reranker=(--representation cross-encoder --passage-max-length 48 --group-size 4 --batch-size 8 --max-steps 32 --lr 1e-4)
    distil=("${common[@]}" --group-size 4 --distillation kl)
    ;;
  full)
    model=${model:-bert-base-uncased} text=${text:-$corpus}
    queries_model=${queries_model:-castorini/doc2query-t5-base-msmarco}
    continuation_model=${continuation_model:-gpt2}
    pretraining=(--cache-chunk-size 256)
    expansion=(--dtype bfloat16)
    mining=(--depth 200 --num-negatives 100) scoring=(--depth 200 --num-negatives 30)
    retriever=(--preset master-marco-retriever1)
    second=(--preset master-marco-retriever2)
    teacher=google/electra-base-discriminator depth=100
    reranker=(--preset master-marco-reranker)
    distil=(--preset master-marco-distil)
    ;;
esac

# expand_passages: generate the queries and the continuation that DOR and GOR predict.
expand_passages() {
  local output=$own/data/expansions.jsonl from=()
  heading "Query and continuation generation"
  [[ -z $queries_model ]] || from+=(--queries-model "$queries_model")
  [[ -z $continuation_model ]] || from+=(--continuation-model "$continuation_model")
  if ((${#from[@]} < 4)); then
    echo "no models for both queries and continuations: pre-training without DOR and GOR"
    pretraining+=(--set tasks="mkp,cmp,npr")
    return
  fi
  make "$output" denserk generate --corpus "$text" "${from[@]}" "${expansion[@]}" --seed "$seed" --output "$output" --resume
  expansions=(--expansions "$output")
}

# retrievers MODEL FIRST SECOND: the first retriever, and the second one with negatives mined by the first.
retrievers() {
  heading "$2: BM25 negatives"
  train "$2" --model "$1" --train-data "$own/data/bm25.jsonl" "${retriever[@]}"
  retrieve "$2" train
  heading "$3: negatives mined with $2, from the same initial weights"
  mine "$2" "$2"
  train "$3" --model "$1" --train-data "$own/data/$2.jsonl" "${second[@]}"
  retrieve "$3" train
}

# mine_to_score: mine negatives with retriever2 again, as many as the teacher scores.
mine_to_score() {
  local mining=("${scoring[@]}")
  mine retriever2 distil
}

# otherwise NAME OPTIONS...: pre-train with other options, and train two retrievers.
otherwise() {
  local name=$1
  shift
  heading "Pre-training with $*"
  pretrain "$name" --objective master --model "$model" --corpus "$text" "${expansions[@]}" "${pretraining[@]}" "$@"
  retrievers "$own/models/$name" "${name}1" "${name}2"
}

expansions=()
bm25
expand_passages
heading "Pre-training"
pretrain pretrained --objective master --model "$model" --corpus "$text" "${expansions[@]}" "${pretraining[@]}"
retrievers "$own/models/pretrained" retriever1 retriever2

heading "reranker: the teacher, with negatives mined by retriever2"
mine retriever2 retriever2
train reranker --model "$teacher" --train-data "$own/data/retriever2.jsonl" "${reranker[@]}"
run=$own/runs/reranker.test.trec
make "$run" denserk rerank --model "$own/models/reranker" --run "$own/runs/retriever2.test.trec" --topics "$test_topics" \
  --corpus "$corpus" --depth "$depth" --output "$run" --tag reranker
stages+=(reranker)

heading "distil: knowledge distillation from the reranker, from the pre-trained weights"
mine_to_score
make "$own/data/scored.jsonl" denserk convert "$own/data/distil.jsonl" "$own/data/scored.jsonl" --to tevatron \
  --teacher "$own/models/reranker"
train distil --model "$own/models/pretrained" --train-data "$own/data/scored.jsonl" "${distil[@]}"
retrieve distil

if ((ablations)); then
  if ((${#expansions[@]})); then
    otherwise no-cpr --set tasks=npr,dor,gor
    otherwise no-rpr --set tasks=mkp,cmp,dor,gor
    otherwise no-por --set tasks=mkp,cmp,npr
  fi
  otherwise shared --set decoders=shared
  otherwise encoder15- --mlm-probability 0.15
  otherwise encoder50- --mlm-probability 0.5
  otherwise decoder30- --set decoder-mlm-probability=0.3
  otherwise decoder70- --set decoder-mlm-probability=0.7
fi
show
