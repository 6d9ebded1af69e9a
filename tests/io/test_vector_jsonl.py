import io

import numpy as np
import pytest

from denserk.errors import InputError
from denserk.io.vector_block import VectorBlock
from denserk.io.vector_jsonl import open_sink, read


@pytest.mark.parametrize(
    ("key", "contents", "line"),
    [
        ("id", True, b'{"id":"d1","contents":"one","vector":[0.1,-2.0]}\n'),
        ("docid", True, b'{"docid":"d1","contents":"one","vector":[0.1,-2.0]}\n'),
        ("qid", False, b'{"qid":"d1","vector":[0.1,-2.0]}\n'),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_lines_are_the_peers(key, contents, line, dtype, tmp_path):
    with open_sink(tmp_path / "v", key, contents=contents) as append:
        append(VectorBlock(["d1"], np.array([[0.1, -2.0]], dtype), ["one"]))
    written = (tmp_path / "v").read_bytes()
    (block,) = read(io.BytesIO(written), "v")
    assert block.ids == ["d1"]
    assert block.texts == (["one"] if contents else [""])
    np.testing.assert_array_equal(block.vectors, np.array([[0.1, -2.0]], dtype))
    if dtype == "float32":
        assert written == line


def test_every_float32_survives_the_decimal_digits(tmp_path):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, (3000, 4), dtype=np.uint32).view(np.float32)
    vectors = np.where(np.isfinite(bits), bits, 1).astype(np.float32)
    with open_sink(tmp_path / "v", "id") as append:
        append(VectorBlock([str(i) for i in range(3000)], vectors))
    with (tmp_path / "v").open("rb") as handle:
        blocks = list(read(handle, "v"))
    assert [len(block.ids) for block in blocks] == [1024, 1024, 952]
    back = np.concatenate([block.vectors for block in blocks])
    assert back.tobytes() == vectors.tobytes()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"id": "b"}', "line 2: found the keys id; expected id and vector"),
        (b'{"docid": "b", "vector": [1, 2]}', "line 2: found the keys docid, vector"),
        (b'{"id": "b", "vector": [1]}', "found a vector of 1 numbers; expected 2"),
        (b'{"id": "b", "vector": [1, "x"]}', "no list of numbers"),
        (b'{"id": "b", "vector": [1, null]}', "no list of numbers"),
        (b'{"id": "b", "vector": [[1], [2, 3]]}', "no list of numbers"),
        (b'{"id": "b", "vector": []}', "no list of numbers"),
        (b'{"id": "b", "vector": "AAAA"}', "no list of numbers"),
        (b'{"id": "b", "vector": [1e39, 1]}', "a vector of b that is not finite"),
        (b'{"id": "b c", "vector": [1, 2]}', "'b c'"),
        (b"[1]", "line 2: found JSON list"),
    ],
)
def test_refusals(line, told):
    with pytest.raises(InputError) as caught:
        list(read(io.BytesIO(b'{"id": "a", "vector": [1, 2]}\n' + line), "v"))
    assert told in str(caught.value)
