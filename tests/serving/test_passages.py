"""The passages of served indexes."""

import gc
from pathlib import Path

from denserk.config.formats import DETECTED
from denserk.serving.passages import SharedPassages
from tests.support.toy import PASSAGES


def test_indexes_of_one_corpus_share_its_passages(service):
    bm25 = service.indexes["bm25"].current.passages
    assert service.indexes["dense"].current.passages is bm25
    known, unknown = bm25.get(["d4", "d99"])
    assert (known.title, known.text) == PASSAGES["d4"]
    assert unknown is None


def test_a_corpus_that_was_written_again_is_read_again(toy, tmp_path):
    shared = SharedPassages(tmp_path)
    corpora = {str(toy / "corpus.jsonl"): DETECTED}
    first = shared.of(corpora)
    assert shared.of(corpora) is first
    (toy / "corpus.jsonl").write_text('{"_id": "d1", "title": "", "text": "the new river"}\n')
    second = shared.of(corpora)
    assert text_of(first, "d1") == PASSAGES["d1"][1]
    assert text_of(second, "d1") == "the new river"


def text_of(passages, docid):
    """Return the text of a passage that is there."""
    (passage,) = passages.get([docid])
    return passage.text


def test_passages_that_nobody_uses_leave_no_file(toy, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    passages = SharedPassages(scratch).of({str(toy / "corpus.jsonl"): DETECTED})
    assert not list(scratch.iterdir())
    assert open_files_below(scratch) == 1
    del passages
    gc.collect()
    assert open_files_below(scratch) == 0


def open_files_below(folder):
    """Return how many files of a folder this process has open, deleted ones too."""
    descriptors = Path("/proc/self/fd").iterdir()
    files = [path.readlink() for path in descriptors if path.is_symlink()]
    return sum(file.is_relative_to(folder) for file in files)
