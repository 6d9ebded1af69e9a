import gzip

import orjson
import pytest

from denserk.errors import InputError
from denserk.io.training import read_sentences
from denserk.records import SentenceExample

PAIRS = [
    SentenceExample(('a plane "takes off', "an air plane takes off"), 5.0),
    SentenceExample(("a cat sleeps", "a dog, big, runs"), 0.75),
]
TRIPLETS = [
    SentenceExample(("the moon rises", "the star falls", 'a "red" boat')),
    SentenceExample(("a cat", "a house, old", "a river")),
]
GLUE = (
    b"index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\r\n"
    b'0\tmain\tMSR\t2012\t1\tnone\tnone\ta plane "takes off\tan air plane takes off\t5.000\r\n'
    b"1\tmain\tMSR\t2012\t4\tnone\tnone\ta cat sleeps\ta dog, big, runs\t0.75\r\n"
)
BENCHMARK = (
    b'main\tMSR\t2012\t0001\t5.000\ta plane "takes off\tan air plane takes off\n'
    b"main\tMSR\t2012\t0004\t0.75\ta cat sleeps\ta dog, big, runs\thttp://a\thttp://b\n"
)
LINES = b"".join(
    orjson.dumps({"sentence1": e.texts[0], "sentence2": e.texts[1], "label": e.label}) + b"\n"
    for e in PAIRS
)
TSV = b"Sentence2\tSentence1\tlabel\n" + b"".join(
    f"{e.texts[1]}\t{e.texts[0]}\t{e.label}\n".encode() for e in PAIRS
)
THREE = b"".join(f"{e.texts[0]}\t{e.texts[1]}\t{e.label}\n".encode() for e in PAIRS)
CSV = (
    b"sentence1,sentence2,score\n"
    b'"a plane ""takes off",an air plane takes off,5\n'
    b'a cat sleeps,"a dog, big, runs",0.75\n'
)
SECTIONS = (
    b"Article Title,Article Link,Sentence1,Sentence2,Sentence3\n"
    b'Moon,http://m,the moon rises,the star falls,"a ""red"" boat"\n'
    b'Cat,http://c,a cat,"a house, old",a river\n'
)
TRIPLET_LINES = b"".join(
    orjson.dumps(dict(zip(("anchor", "positive", "negative"), e.texts, strict=True))) + b"\n"
    for e in TRIPLETS
)
TRIPLET_TSV = b"".join("\t".join(e.texts).encode() + b"\n" for e in TRIPLETS)
TRIPLET_HEADER = b"anchor\tpositive\tnegative\n"
FILES = [
    *((PAIRS, data) for data in (GLUE, BENCHMARK, LINES, TSV, THREE, CSV)),
    *((TRIPLETS, data) for data in (SECTIONS, TRIPLET_LINES, TRIPLET_TSV)),
    (TRIPLETS, TRIPLET_HEADER + TRIPLET_TSV),
]


@pytest.fixture
def read(tmp_path):
    """`read(data, size)`: the examples of a file that holds these bytes."""

    def examples(data, size=None):
        (tmp_path / "file").write_bytes(data)
        return list(read_sentences(tmp_path / "file", size))

    return examples


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize(("expected", "data"), FILES, ids=range(len(FILES)))
def test_pairs_and_triplets(read, expected, data, sized):
    assert read(data, len(expected[0].texts) if sized else None) == expected


def test_compressed_with_a_mark_and_empty_lines(tmp_path):
    path = tmp_path / "pairs.tsv.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + TSV.replace(b"\n", b"\r\n\r\n")))
    assert list(read_sentences(path)) == PAIRS


HEAD = b"sentence1\tsentence2\tlabel\n"


@pytest.mark.parametrize(
    ("data", "size", "message"),
    [
        (b"", None, "found no rows; expected pairs (sentence1, sentence2, label) or triplets"),
        (HEAD, 2, "found no rows; expected pairs: the columns sentence1, sentence2"),
        (b"just a text\n", None, "line 1: found 1 column without a header"),
        (b"a\tb\n", 3, "line 1: found 2 columns without a header; expected triplets"),
        (HEAD + b"a\tb\t1\na\tb\n", 2, "line 3: found 2 columns; expected 3: sentence1"),
        (GLUE, 3, "line 2: found the columns index, genre, filename"),
        (TRIPLET_LINES, 2, "line 1: found the columns anchor, positive, negative; expected pairs"),
        (b'{"text": "a"}\n', None, "line 1: found the columns text"),
        (b'{"sentence1": "a", "sentence2": "b"}\n', 2, "line 1: found no label among the columns"),
        (LINES + b'{"sentence1": "a", "sentence2": "b", "label": null}', 2, "line 3: found no lab"),
        (LINES + b'{"sentence1": "a", "label": 1}', 2, "line 3: found no sentence2"),
        (LINES + b'{"sentence1": 7, "sentence2": "b", "label": 1}', 2, "int as sentence1"),
        (LINES + b"nonsense", 2, "line 3: found a line that is not JSON"),
        (HEAD + b"a\tb\tnan\n", 2, "line 2: found label 'nan'; expected a finite number"),
        (HEAD + b"a\tb\t\n", 2, "line 2: found label ''; expected a finite number"),
        (HEAD + b"a\t \t1\n", 2, "line 2: found no sentence2; expected a sentence"),
        (HEAD + b"a\t\xff\t1\n", 2, "line 2: found a byte that is not UTF-8 (0xff)"),
        (THREE + b"a\tb\tmuch\n", 2, "line 3: found label 'much'"),
        (
            b"split\tsentence1\tsentence2\tlabel\ntrain\ta\tb\t1\ntest\tc\td\t2\n",
            2,
            "line 3: found split 'test' after 'train'; expected a file a split",
        ),
    ],
)
def test_what_is_rejected(read, data, size, message):
    with pytest.raises(InputError) as caught:
        read(data, size)
    assert message in caught.value.message
