import shlex

import pytest

from denserk.commands.app import run

TRAIN = "finetune --model m --train-data t --output out"
SEARCH = "search --index i --encoded-queries q --output out"
MINE = "mine-negatives --topics queries.tsv --qrels qrels.txt --corpus corpus.jsonl --output out"
SPLIT = "convert corpus.jsonl passages.jsonl"
ANSWERED = "eval good.trec --answers answers.jsonl --corpus corpus.jsonl"


@pytest.fixture
def files(toy, monkeypatch):
    monkeypatch.chdir(toy)
    lines = ("q1 Q0 d3 1 3 t", "q2 Q0 d5 2 2 t", "q3 Q0 d4 2 2 t", "")
    (toy / "good.trec").write_text("\n".join(lines))
    (toy / "answers.jsonl").write_text('{"_id": "q1", "question": "q", "answers": ["boat"]}\n')
    (toy / "no.tsv").write_text("x 0 d1 1\n")
    (toy / "answers.txt").write_text("q1 boat\n")
    (toy / "two").write_text("1\tone two\n")
    (toy / "three").write_text("1\t2\t3\n")
    return toy


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        # words that are no command, no number
        ("serach --index i", 2, "did you mean search"),
        ("help serach", 2, "did you mean search"),
        ("search --index i --topics queries.tsv --hits ten --output out", 2, "--hits: found 'ten'"),
        ("encode --model m --corpus c --output o --batch-size 1.5", 2, "--batch-size: found '1.5'"),
        (f"{TRAIN} --lr fast", 2, "--lr: found 'fast', expected a number"),
        # files
        ("convert nothing.tsv out", 2, "nothing.tsv: no such file"),
        ("convert - out", 2, "add --kind with one of corpus, queries"),
        ("convert corpus.jsonl -", 2, "add --kind corpus --to beir, or another format: anserini"),
        ("convert two out", 2, "could hold corpus or queries"),
        ("convert three out", 2, "add --kind with one of qrels, run, training"),
        ("convert two out --kind corpus --to trec", 2, "--to trec: no such"),
        ("convert two c --kind corpus", 2, "any of several formats"),
        ("convert two two", 2, "two is both input and output"),
        ("convert corpus.jsonl out --kind qrels --to trec", 1, "corpus.jsonl, line 1: found"),
        ("eval good.trec", 2, "no qrels file given"),
        ("eval qrels.txt", 2, "no run given beside the qrels qrels.txt"),
        ("eval good.trec answers.txt", 1, "answers.txt, line 1: found 2 columns; expected a run"),
        ("eval good.trec good.trec qrels.txt", 2, "good.trec: given twice"),
        ("eval good.trec qrels.txt --qrels no.tsv", 2, "several qrels files given"),
        ("eval --run qrels.txt --qrels good.trec", 1, "good.trec, line 1: found 6 columns"),
        ("eval absent.trec qrels.txt", 2, "absent.trec: no such file"),
        ("eval corpus.jsonl qrels.txt", 1, "corpus.jsonl, line 1: found the keys"),
        ("eval good.trec qrels.txt --report qrels.txt", 2, "a file; a folder is expected"),
        ("eval good.trec qrels.txt --set report-ids=q1", 2, "--set report-ids needs --report"),
        (f"{ANSWERED} --report page --set report-ids=q1", 2, "--answers exclude each other"),
        ("fuse good.trec --output out", 2, "two runs or more are needed"),
        ("search --index s-* --topics t --output out", 2, "--index s-*: the pattern matches noth"),
        (f"{MINE} --run qrels.txt", 1, "exchange run and qrels"),
        (f"{MINE} --run good.trec --teacher nowhere/model", 1, "nowhere/model"),
        (f"{MINE} --run good.trec --set answer-bearing=drop", 2, "add --answers"),
        (f"{MINE} --run good.trec --preset nv-retrieval", 2, "did you mean nv-retriever"),
        (f"{MINE} --run - --train -", 2, "standard input (-) can be only one of the inputs"),
        ("rerank --model m --run - --topics t --corpus - --output out", 2, "standard input (-)"),
        # a stream where a folder is written
        ("index --input v --output -", 2, "--output -: a folder is expected"),
        ("benchmark dl19 --model m --output -", 2, "--output -: a folder is expected"),
        ("finetune --model m --train-data t --output -", 2, "--output -: a folder is expected"),
        ("eval good.trec qrels.txt --report -", 2, "--report -: a folder is expected"),
        ("convert m - --kind model --to denserk", 2, "-: a folder is expected"),
        # documents that are split
        (f"{SPLIT} --split-words 0", 2, "--split-words 0: at least 1"),
        (f"{SPLIT} --split-sentences -1", 2, "--split-sentences -1: at least 1"),
        (f"{SPLIT} --split-words 2 --stride 0", 2, "--stride 0: at least 1"),
        (f"{SPLIT} --split-words 2 --stride 3", 2, "--stride 3 is larger than --split-words 2"),
        (f"{SPLIT} --split-sentences 2 --stride 3", 2, "larger than --split-sentences 2: text wou"),
        (f"{SPLIT} --split-words 2 --split-sentences 2", 2, "exclude each other"),
        (f"{SPLIT} --split-words 2 --expansions e", 2, "--split-words and --expansions exclude"),
        (f"{SPLIT} --stride 2", 2, "--stride needs --split-words or --split-sentences"),
        (f"{SPLIT} --set max-passage-delimiter=/", 2, "max-passage-delimiter needs --split-words"),
        (f"{SPLIT} --split-words 2 --set 'max-passage-delimiter= '", 2, "white space"),
        ("convert queries.tsv out --split-words 2", 2, "--split-words: not used by queries"),
        ("convert good.trec out --split-sentences 2", 2, "--split-sentences: not used by run"),
        # options that do nothing, or contradict each other
        ("eval good.trec qrels.txt --regex", 2, "--regex needs --answers"),
        (f"{ANSWERED} --qrels qrels.txt", 2, "--qrels and --answers exclude each other"),
        ("eval good.trec --qrels qrels.txt --qrels no.tsv", 2, "--qrels takes one file"),
        ("benchmark dl19 --model m", 2, "--model needs --output"),
        ("benchmark dl19-titel --model m --output out", 2, "did you mean dl19-titled"),
        (f"{TRAIN} --preset condenser-marko", 2, "did you mean condenser-marco"),
        ("benchmark dl19 --runs r --hits 5 --bf16", 2, "--hits, --dtype, --bf16: only"),
        ("benchmark dl19 --model m --output out -m nDGC@10", 2, "nDGC@10 is not a measure"),
        ("benchmark dl19 --model m --output out --seeds", 2, "--seeds: only for run files of one"),
        ("benchmark dl19 --model m --output out -q", 2, "--per-query: only for run files of one"),
        (f"{TRAIN} --p-chunk 9", 2, "--p-chunk is a setting, not an option"),
        (f"{TRAIN} --p-chunk 9", 2, "give --set p-chunk=9"),
        (
            f"{TRAIN} --lora_alpha=16 --norm-intermediate --logging-steps 5",
            2,
            "give --set lora-alpha=16 --set norm-intermediate=VALUE --set logging-steps=5",
        ),
        (f"{TRAIN} --no-norm-intermediate", 2, "give --set norm-intermediate=no"),
        (f"{TRAIN} --set p-chunks=9", 2, "p-chunks is not a setting (did you mean p-chunk?)"),
        ("analyze misses --run good.trec --qrels qrels.txt --bm25 gone", 2, "--bm25 gone: no such"),
        ("reproduce good.trec --resume", 2, "--resume needs --output"),
        (f"{MINE} --run good.trec --query-max-length 9", 2, "--query-max-length: only for --teach"),
        ("benchmark dl19 --runs r --query-max-length 9", 2, "error: --query-max-length: only with"),
        ("encode --model m --topics queries.tsv --output out --text-field t", 2, "only for --corp"),
        ("index --input v --output out --nlist 8", 2, "--nlist: not used by --type flat"),
        (
            "index --type bm25 --corpus c --output out --metric l2",
            2,
            "--metric: not used by --type",
        ),
        ("index --input v --output out --text-field t", 2, "--text-field: only for BM25"),
        ("convert corpus.jsonl out --to beir --l2-norm", 2, "--l2-norm: not used by corpus"),
        ("convert queries.tsv out --kind queries --to beir --fields t", 2, "--fields: not used by"),
        ("index --input v --output out --set milvus-index=HNSW", 2, "only for Milvus"),
        (f"{SEARCH} --collection c", 2, "--collection: only for Milvus"),
        (f"{SEARCH} --query moon", 2, "--query and --encoded-queries exclude each other"),
        ("search --index i --topics queries.tsv", 2, "--output must be given"),
        ("search --index i --query moon --tag t", 2, "--tag: only for --output"),
        ("encode --model m --corpus c --topics t --output o", 2, "--corpus and --topics exclude"),
        ("encode --model m --output o", 2, "give --corpus or --topics"),
        # what a command needs is shown by an example
        ("encode --corpus c --output o", 2, "--model must be given\n  e.g. denserk encode --model"),
        ("finetune --train-data t --output o", 2, "e.g. denserk finetune --model"),
        ("index --output o", 2, "e.g. denserk index --input"),
        ("train --model m", 2, "that is denserk finetune"),
        # values
        ("eval good.trec qrels.txt -m 'nDGC@10 R'", 2, "nDGC@10 is not a measure of ir-measures"),
        (f"eval good.trec qrels.txt -m nDCG@{9**20}", 2, f"cutoff {9**20} is above 2147483647"),
        (f"eval good.trec qrels.txt -m 'P(rel={9**20})@5'", 2, f"rel {9**20} is above"),
        (f"{ANSWERED} --set topk={9**20}", 2, f"topk={9**20}: at most 2147483647"),
        ("eval good.trec qrels.txt --min RR@10", 2, "--min RR@10"),
        (f"{SEARCH} --hits 0", 2, "--hits 0: at least 1 is expected"),
        (f"{TRAIN} --lr nan", 2, "--lr nan: a finite number"),
        ("fuse good.trec qrels.txt --alpha 1.5 --output out", 2, "--alpha 1.5: at"),
        ("fuse good.trec qrels.txt --weights 1,x --output out", 2, "weights: found 'x', expect"),
    ],
)
def test_one_line_and_nothing_written(files, capsys, line, status, message):
    before = sorted(files.iterdir())
    assert run([*shlex.split(line), "--quiet"]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert len(err.splitlines()) <= 2
    assert sorted(files.iterdir()) == before
