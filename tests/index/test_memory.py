import pytest

from denserk.errors import UsageError
from denserk.index import memory
from denserk.index.memory import available_bytes, require_memory
from tests.reporters import Heard

NEEDS = {"codes": 3_000_000, "nothing": 0, "lists": 2_000_000_000}
TOLD = "building X needs 2.0 GB of memory (codes 3.0 MB, lists 2.0 GB)"


@pytest.mark.parametrize("there", [None, 2_003_000_000])
def test_what_fits_is_told(monkeypatch, there):
    monkeypatch.setattr(memory, "available_bytes", lambda: there)
    reporter = Heard()
    require_memory("building X", NEEDS, "do Y")
    assert reporter.notes == [TOLD]


def test_what_does_not_fit_is_refused_with_the_alternative(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 2_002_999_999)
    with pytest.raises(UsageError) as refused:
        require_memory("building X", NEEDS, "do Y")
    assert refused.value.message == f"{TOLD}, and 2.0 GB are available"
    assert refused.value.hint == "do Y"


@pytest.mark.parametrize(
    ("machine", "limit", "used", "expected"),
    [
        ("MemFree: 9 kB\nMemAvailable:  500 kB\n", None, None, 512_000),
        ("MemAvailable: 500 kB\n", "400000\n", "100000\n", 301_000),
        ("MemAvailable: 500 kB\n", "max\n", "100000\n", 512_000),
        ("MemAvailable: 500 kB\n", "100\n", "1101\n", 0),
        (None, None, None, None),
    ],
)
def test_what_linux_tells(monkeypatch, tmp_path, machine, limit, used, expected):
    told = {"meminfo": machine, "memory.max": limit, "memory.current": used}
    for name, text in told.items():
        if text is not None:
            (tmp_path / name).write_text(text)
    (tmp_path / "memory.stat").write_text("anon 7\ninactive_file 900\nactive_file 100\n")
    monkeypatch.setattr(memory, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    assert available_bytes() == expected
