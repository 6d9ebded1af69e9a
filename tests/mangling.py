"""Files after an accident, cut or overwritten, for tests that readers refuse them well."""

from hypothesis import strategies as st

JUNK = [b"\x00", b"\xff", b'"', b"{", b"}", b"[", b"]", b"\t", b"\n", b",", b":", b"null", b"1e999"]


@st.composite
def mangled(draw, data: bytes) -> bytes:
    """The bytes of a good file after up to three accidents."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 20)) | st.just(len(data)))
        data = data[:start] + draw(st.sampled_from(JUNK) | st.binary(max_size=8)) + data[end:]
    return data
