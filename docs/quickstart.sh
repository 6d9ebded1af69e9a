#!/usr/bin/env bash
# Four retrievers on the docstrings of Python's standard library, compared; everything is written to demo/.
#
#   bash docs/quickstart.sh              makes .venv first
#   bash docs/quickstart.sh --installed  uses the denserk that is on PATH, with its extras cpu, bm25, demo and report
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../tests/environment.sh"
if [ "${1-}" != --installed ]; then
  environment cpu,bm25,demo,report
fi
cd "$repository"
export HF_HUB_OFFLINE=1

step() {
  printf '\n== %s [%s s]\n' "$1" "$SECONDS"
}

run() {
  local word line=
  for word in "$@"; do
    [[ $word == *[\ *]* ]] && word="'$word'"
    line+=" $word"
  done
  echo "\$$line" >&2
  "$@"
}

search() {  # INDEX NAME: runs of the test and the training queries
  run denserk search --index "$1" --topics demo/queries.tsv --hits 100 --output "demo/$2.trec" --tag "$2" --quiet
  run denserk search --index "$1" --topics demo/train-queries.tsv --hits 100 --output "demo/train/$2.trec" --tag "$2" --quiet
}

SECONDS=0
rm -rf demo
mkdir -p demo/train

step "A collection: the first line of a docstring is a query, the rest is the passage to find"
run python docs/quickstart/collect.py demo

step "BM25"
run denserk index --corpus demo/corpus.jsonl --type bm25 --output demo/bm25 --quiet
search demo/bm25 bm25

step "MiniLM as published"
run denserk encode --model minilm --corpus demo/corpus.jsonl --output demo/minilm
search demo/minilm minilm
run denserk eval demo/bm25.trec demo/minilm.trec demo/qrels.txt -m 'nDCG@10 R@100' --baseline bm25.trec --format table --quiet

step "MiniLM fine-tuned on hard negatives: wrong passages among its own hits for the training queries"
run denserk mine-negatives --topics demo/train-queries.tsv --qrels demo/train-qrels.txt --run demo/train/minilm.trec \
  --corpus demo/corpus.jsonl --depth 30 --num-negatives 4 --output demo/train/mined.jsonl
awk '{ print > (NR % 25 == 0 && ++n <= 64 ? "demo/train/dev.jsonl" : "demo/train/train.jsonl") }' demo/train/mined.jsonl  # 64 for validation
run denserk finetune --model minilm --train-data demo/train/train.jsonl --dev-data demo/train/dev.jsonl --eval-steps 8 \
  --group-size 2 --batch-size 32 --max-steps 40 --lr 5e-5 --temperature 0.05 --passage-max-length 64 --bf16 --output demo/model
run denserk encode --model demo/model --corpus demo/corpus.jsonl --passage-max-length 256 --output demo/finetuned
search demo/finetuned finetuned

step "Hybrid: BM25 and the fine-tuned model, with the weights that are best on the training queries"
options=$(run denserk fuse demo/train/bm25.trec demo/train/finetuned.trec --tune demo/train-qrels.txt)
run denserk fuse demo/bm25.trec demo/finetuned.trec $options --output demo/hybrid.trec --tag hybrid

step "All four, each tested against the one before it"
run denserk eval demo/{bm25,minilm,finetuned,hybrid}.trec demo/qrels.txt -m 'nDCG@10 R@100' --baseline previous --format table \
  --plot demo/measures.png --quiet

step "Three questions for the fine-tuned model"
run denserk search --index demo/finetuned --hits 2 --query 'how similar are two strings' \
  --query 'keep a password from showing while it is typed' --query 'why are two lists in a test not equal' --quiet

step "Which one to take? Queries come in blocks, and what is not the best is dropped early"
run denserk choose --corpus demo/corpus.jsonl --topics demo/queries.tsv --qrels demo/qrels.txt --candidates demo/bm25.trec \
  --candidates demo/minilm.trec --candidates demo/finetuned.trec --candidates demo/hybrid.trec --output demo/choice

printf '\nDone in %s s. demo/measures.png compares the four, demo/model/training.png shows the training,\n' "$SECONDS"
printf 'demo/choice/index.html the choice among them.\n'
printf '"source .venv/bin/activate" brings the denserk command; docs/tutorial.md uses your own data,\n'
printf 'docs/papers/aggretriever.md trains Aggretriever, which needs more than minutes.\n'
