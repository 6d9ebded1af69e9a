"""A run over the toy collection to mine from, and the ids of what was mined."""

RUN = {
    "q1": {"d3": 9.0, "d10": 8.0, "d1": 7.0, "d2": 6.0},
    "q3": {"d5": 5.0, "d4": 4.5, "d3": 4.0},
    "q2": {"d5": 3.0, "d2": 2.5, "d1": 2.0, "d4": 1.5, "d3": 1.0},
}


def run_text(run, tag="made"):
    return "".join(
        f"{qid} Q0 {docid} {rank} {score} {tag}\n"
        for qid, hits in run.items()
        for rank, (docid, score) in enumerate(hits.items(), start=1)
    )


def ids(candidates):
    return [candidate.docid for candidate in candidates]


def negatives(examples):
    return {qid: ids(example.negatives) for qid, example in examples.items()}
