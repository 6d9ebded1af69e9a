#!/usr/bin/env bash
# The figures of docs/howto/fairytaleqa.md: which retriever is best on fairytaleqa, why MiniLM misses, and what helps.
# What is there is not made again.
#
#   bash docs/fairytaleqa.sh --data DIR --runs DIR
#
# DATA has the folder fairytaleqa in BEIR layout. Models, vectors and runs go to RUNS; the tables are printed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../tests/environment.sh"
source "$(dirname "${BASH_SOURCE[0]}")/options.sh"

read_options "data runs" "$@"
environment cpu,bm25,demo,report
cd "$repository"
export HF_HUB_OFFLINE=1

denserk() {
  echo "\$ denserk $*" >&2
  command denserk "$@" --quiet
}

choose() {  # decides with the questions of dev; those of test are opened once
  command denserk choose --corpus "$corpus" --topics "$topics" --qrels "$dev" --test-qrels "$test" \
    --candidates bm25 --candidates minilm --candidates 'fixed-hybrid=0.3*bm25+0.7*minilm' --candidates 'fitted-hybrid=bm25+minilm' \
    --dtype float32 --resume --output "$runs/choice"
}

search() {  # INDEX NAME [OPTION...]: the first 100 hits of the questions of dev and of test, unless they are there
  local index=$1 name=$2 split
  shift 2
  for split in dev test; do
    [ -e "$runs/$split/$name.trec" ] ||
      denserk search --index "$index" --topics "$topics" --qrels "${!split}" --hits 100 "$@" --output "$runs/$split/$name.trec"
  done
}

fuse() {  # NAME FIRST SECOND [OPTION...]: their hybrid; without options, its weights are fitted on dev
  local name=$1 first=$2.trec second=$3.trec split weights
  shift 3
  [ ! -e "$runs/test/$name.trec" ] || return 0
  if [ $# -eq 0 ]; then
    weights=$(denserk fuse "$runs/dev/$first" "$runs/dev/$second" --tune "$dev")
    set -- $weights
  fi
  for split in dev test; do
    denserk fuse "$runs/$split/$first" "$runs/$split/$second" "$@" --overwrite --output "$runs/$split/$name.trec"
  done
}

misses() {  # NAME: why the run misses passages of dev
  local table=$runs/$1.misses.txt
  [ -e "$table" ] ||
    denserk analyze misses --run "$runs/dev/$1.trec" --qrels "$dev" --bm25 "$bm25" --sample 200 --set most-encoded=500 --overwrite \
      --output "$runs/$1.misses.csv" >"$runs/partial"
  [ -e "$table" ] || mv "$runs/partial" "$table"
  cat "$table"
}

first_hits() {  # RUN...: shares of the dev questions whose first hit is relevant, of the same story, of another story
  python - "$dev" "$@" <<'END'
import sys
from pathlib import Path

relevant = set()
for line in Path(sys.argv[1]).read_text().splitlines()[1:]:
    qid, docid, _ = line.split("\t")
    relevant.add((qid, docid))
qids = {qid for qid, _ in relevant}
print("first hit".ljust(28), "relevant", "same story", "another story", sep="  ")
for run in map(Path, sys.argv[2:]):
    first = {}
    for line in run.read_text().splitlines():
        qid, _, docid, *_ = line.split()
        first.setdefault(qid, docid)
    same_story = {qid for qid in qids if first[qid].split("-")[0] == qid.split("-")[0]}
    found = {qid for qid in qids if (qid, first[qid]) in relevant}
    counts = [len(found), len(same_story - found), len(qids - same_story)]
    shares = [f"{100 * count / len(qids):.1f} %".rjust(width) for count, width in zip(counts, (8, 10, 13))]
    print(run.stem.ljust(28), *shares, sep="  ")
END
}

ranks() {  # RUN...: the ranks of the relevant section of the five questions that the page looks at
  python - "$dev" "$@" <<'END'
import sys
from pathlib import Path

qids = ["s251-q008", "s238-q019", "s249-q012", "s252-q017", "s253-q015"]
relevant = {}
for line in Path(sys.argv[1]).read_text().splitlines()[1:]:
    qid, docid, _ = line.split("\t")
    relevant.setdefault(qid, set()).add(docid)
print("rank".ljust(28), *qids, sep="  ")
for run in map(Path, sys.argv[2:]):
    ranks = dict.fromkeys(qids, "-")
    for line in run.read_text().splitlines():
        qid, _, docid, rank, *_ = line.split()
        if docid in relevant.get(qid, ()) and ranks.get(qid) == "-":
            ranks[qid] = rank
    print(run.stem.ljust(28), *(ranks[qid].rjust(len(qid)) for qid in qids), sep="  ")
END
}

brought_in() {  # RUN...: how many of MiniLM's misses of each cause are among the first 10 hits of each run
  python - "$runs/minilm.misses.csv" "$@" <<'END'
import csv, sys
from pathlib import Path

misses = {}
with open(sys.argv[1], newline="") as table:
    for row in csv.DictReader(table):
        misses.setdefault(row["cause"], set()).add((row["qid"], row["docid"]))
causes = sorted(misses, key=lambda cause: -len(misses[cause]))
print("among the first 10 hits".ljust(28), *(cause.rjust(8) for cause in causes), sep="  ")
print("missed by minilm".ljust(28), *(str(len(misses[cause])).rjust(8) for cause in causes), sep="  ")
for run in map(Path, sys.argv[2:]):
    hits = set()
    for line in run.read_text().splitlines():
        qid, _, docid, rank, *_ = line.split()
        if int(rank) <= 10:
            hits.add((qid, docid))
    print(run.stem.ljust(28), *(str(len(misses[cause] & hits)).rjust(8) for cause in causes), sep="  ")
END
}

by_story() {  # RUN...: mean over the stories of test of the mean difference from BM25, with its interval of Student's t
  python - "$test" "$runs/test/bm25.trec" "$@" <<'END'
import sys

import numpy as np
from scipy.stats import ttest_1samp

from denserk.config.evaluation import EvaluationSettings
from denserk.tasks.evaluate import evaluate

qrels, *runs = sys.argv[1:]
settings = EvaluationSettings(measures=("nDCG@10",))
values = [evaluate([run], qrels, settings).runs[0] for run in runs]
baseline = values[0].per_query["nDCG@10"]
print("test, by story".ljust(28), "difference", "95 % interval", sep="  ")
for run in values[1:]:
    differences = {}
    for qid, value in run.per_query["nDCG@10"].items():
        differences.setdefault(qid.split("-")[0], []).append(value - baseline[qid])
    means = [np.mean(of_story) for of_story in differences.values()]
    low, high = ttest_1samp(means, 0).confidence_interval()
    print(run.name.ljust(28), f"{np.mean(means):+.4f}".rjust(10), f"{low:+.4f} to {high:+.4f}", sep="  ")
END
}

draw_training_queries() {  # every tenth question of train, without those whose words are also a question of dev or test
  python - "$topics" "$data/fairytaleqa/qrels" <<'END'
import gzip, json, sys
from pathlib import Path

topics, qrels = sys.argv[1], Path(sys.argv[2])
lines = gzip.open(topics, "rt") if topics.endswith(".gz") else open(topics)
texts = {}
for line in lines:
    query = json.loads(line)
    texts[query["_id"]] = " ".join(query["text"].split()).casefold()
judgments = {}
for split in ("dev", "test", "train"):
    judgments[split] = {}
    for line in (qrels / f"{split}.tsv").read_text().splitlines()[1:]:
        qid, docid, grade = line.split("\t")
        judgments[split].setdefault(qid, []).append(f"{qid} 0 {docid} {grade}")
evaluated = {texts[qid] for split in ("dev", "test") for qid in judgments[split]}
others = [qid for qid in sorted(judgments["train"]) if texts[qid] not in evaluated]
for qid in others[::10]:
    print("\n".join(judgments["train"][qid]))
END
}

train() {  # MiniLM, for 24 steps of 32 questions; other passages of the batch are the negatives
  [ -e "$runs/train.txt" ] || draw_training_queries >"$runs/train.txt"
  [ -e "$runs/train.trec" ] ||
    denserk search --index "$vectors" --topics "$topics" --qrels "$runs/train.txt" --hits 50 --output "$runs/train.trec"
  [ -e "$runs/train.jsonl" ] ||
    denserk mine-negatives --topics "$topics" --qrels "$runs/train.txt" --run "$runs/train.trec" --corpus "$corpus" \
      --depth 30 --num-negatives 4 --output "$runs/train.jsonl"
  [ -e "$runs/finetuned.model/model.safetensors" ] ||
    denserk finetune --model minilm --train-data "$runs/train.jsonl" --group-size 1 --batch-size 32 --max-steps 24 --lr 5e-5 \
      --temperature 0.05 --query-max-length 32 --passage-max-length 96 --bf16 --output "$runs/finetuned.model"
  denserk encode --model "$runs/finetuned.model" --corpus "$corpus" --query-max-length 256 --passage-max-length 256 --dtype float32 \
    --resume --output "$runs/finetuned"
}

corpus=$(echo "$data/fairytaleqa"/corpus*) topics=$(echo "$data/fairytaleqa"/queries*)
dev=$data/fairytaleqa/qrels/dev.tsv test=$data/fairytaleqa/qrels/test.tsv
bm25=$runs/choice/indexes/bm25 vectors=$runs/choice/vectors/minilm
mkdir -p "$runs/dev" "$runs/test"

echo "1. Which is best? Questions of dev decide"
choose
search "$bm25" bm25
search "$vectors" minilm
fuse fixed-hybrid bm25 minilm --method linear --weights 0.3,0.7

echo "2. Why? The misses of MiniLM, and of the hybrid with fixed weights, on dev"
misses minilm
misses fixed-hybrid

train
search "$runs/finetuned" finetuned
fuse fitted-hybrid bm25 minilm
fuse fitted-finetuned-hybrid bm25 finetuned
search "$bm25" bm25-title --set topics-field=title,text
search "$vectors" minilm-title --set topics-field=title,text
fuse fitted-title-hybrid bm25-title minilm-title

first_hits "$runs/dev"/*.trec
ranks "$runs/dev"/*.trec
brought_in "$runs/dev"/*.trec
for split in dev test; do
  echo "3. What helps? The $split questions, against BM25"
  command denserk eval "$runs/$split"/*.trec "${!split}" --baseline bm25 -m nDCG@10 --format table --quiet
done
by_story "$runs/test"/*[!5].trec  # all but bm25.trec
