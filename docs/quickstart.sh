#!/usr/bin/env bash
# From text to measures on the documentation of Python's own standard library; results in demo/.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../tests/environment.sh"
environment cpu,bm25,demo
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

step "Dense: text to vectors, vectors to an index, queries to a run"
run denserk encode --model demo/minilm --corpus demo/corpus.jsonl --output demo/vectors
run denserk index --input demo/vectors --output demo/index
run denserk search --index demo/index --model demo/minilm --topics demo/queries.tsv --hits 100 \
  --output demo/minilm.trec --tag minilm

step "Words: BM25"
run denserk index --corpus demo/corpus.jsonl --type bm25 --output demo/bm25
run denserk search --index demo/bm25 --topics demo/queries.tsv --hits 100 \
  --output demo/bm25.trec --tag bm25

step "Both against the judgements"
run denserk eval demo/bm25.trec demo/minilm.trec demo/qrels.txt -m 'nDCG@10 RR@10 R@100' --format table

step "Three questions in other words, by the dense index"
run denserk search --index demo/index --model demo/minilm --topics docs/quickstart/questions.tsv \
  --hits 3 --output demo/questions.trec
run python docs/quickstart/show.py demo/corpus.jsonl docs/quickstart/questions.tsv demo/questions.trec

printf '\nDone in %s s. The files are in demo/; "source .venv/bin/activate" brings the denserk command.\n' "$SECONDS"
