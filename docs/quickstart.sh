#!/usr/bin/env bash
# From text to a trained retriever and its measures, on the documentation of Python's own standard library; in demo/.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../tests/environment.sh"
environment cpu,bm25,demo,report
cd "$repository"
export HF_HUB_OFFLINE=1

step() {
  printf '\n== %s\n' "$*"
}

run() {
  local word line=
  for word in "$@"; do
    [[ $word == *[\ *]* ]] && word="'$word'"
    line+=" $word"
  done
  echo "\$$line"
  "$@"
}

SECONDS=0
rm -rf demo
mkdir demo

step "A collection: the first line of a documentation string asks, the rest of it answers"
run python docs/quickstart/collect.py demo
ln -s "$(python docs/quickstart/model.py)" demo/minilm

step "Words: BM25"
run denserk index --corpus demo/corpus.jsonl --type bm25 --output demo/bm25
run denserk search --index demo/bm25 --topics demo/queries.tsv --hits 100 --output demo/bm25.trec --tag bm25

step "Dense, as it comes: text to vectors, vectors to an index, queries to a run"
run denserk encode --model demo/minilm --corpus demo/corpus.jsonl --output demo/vectors
run denserk index --input demo/vectors --output demo/index
run denserk search --index demo/index --topics demo/queries.tsv --hits 100 --output demo/minilm.trec --tag minilm

step "Pre-training: a fresh head learns to say masked words of these passages"
run denserk pretrain --objective mlm --model demo/minilm --corpus demo/corpus.jsonl --output demo/pretrained \
  --max-length 48 --batch-size 16 --max-steps 60 --lr 1e-4

step "Round 1: fine-tuning as Aggretriever, on negatives that BM25 finds"
run denserk search --index demo/bm25 --topics demo/train-queries.tsv --hits 50 --output demo/bm25-train.trec
run denserk mine-negatives --topics demo/train-queries.tsv --qrels demo/train-qrels.txt --run demo/bm25-train.trec \
  --corpus demo/corpus.jsonl --depth 50 --num-negatives 4 --output demo/bm25-negatives.jsonl
run denserk finetune --model demo/pretrained --representation agg --cls-dim 128 --agg-dim 256 --passage-max-length 48 \
  --train-data demo/bm25-negatives.jsonl --group-size 2 --batch-size 16 --max-steps 24 --lr 1e-4 --output demo/round1
run denserk encode --model demo/round1 --corpus demo/corpus.jsonl --output demo/round1-vectors
run denserk index --input demo/round1-vectors --output demo/round1-index
run denserk search --index demo/round1-index --topics demo/queries.tsv --hits 100 --output demo/round1.trec --tag round1

step "Round 2: on negatives that round 1 finds"
run denserk search --index demo/round1-index --topics demo/train-queries.tsv --hits 50 --output demo/round1-train.trec
run denserk mine-negatives --topics demo/train-queries.tsv --qrels demo/train-qrels.txt --run demo/round1-train.trec \
  --corpus demo/corpus.jsonl --depth 50 --num-negatives 4 --output demo/round1-negatives.jsonl
run denserk finetune --model demo/round1 --train-data demo/round1-negatives.jsonl \
  --group-size 2 --batch-size 16 --max-steps 16 --lr 5e-5 --output demo/round2
run denserk encode --model demo/round2 --corpus demo/corpus.jsonl --output demo/round2-vectors
run denserk index --input demo/round2-vectors --output demo/round2-index
run denserk search --index demo/round2-index --topics demo/queries.tsv --hits 100 --output demo/round2.trec --tag round2

step "Words and vectors together"
run denserk fuse demo/bm25.trec demo/round2.trec --output demo/bm25+round2.trec --tag bm25+round2

step "All of them against the judgments"
runs=(demo/bm25.trec demo/minilm.trec demo/round1.trec demo/round2.trec demo/bm25+round2.trec)
run denserk eval "${runs[@]}" demo/qrels.txt -m 'nDCG@10 RR@10 R@100' --format table
denserk eval "${runs[@]}" demo/qrels.txt -m 'nDCG@10 R@100' --format json --quiet | python docs/quickstart/plot.py demo/measures.png

step "Three questions in other words, by the dense index"
run denserk search --index demo/index --topics docs/quickstart/questions.tsv --hits 3 --output demo/questions.trec
run python docs/quickstart/show.py demo/corpus.jsonl docs/quickstart/questions.tsv demo/questions.trec

printf '\nDone in %s s. demo/measures.png shows the measures; demo/round1/training.png, how training went.\n' "$SECONDS"
printf '"source .venv/bin/activate" brings the denserk command.\n'
