import pytest

from denserk.index import memory


@pytest.mark.parametrize("limit", ["400000\n", "max\n", None])
def test_available_memory(monkeypatch, tmp_path, limit):
    files = {
        "meminfo": "MemFree: 9 kB\nMemAvailable:  500 kB\n",
        "memory.max": limit,
        "memory.current": "100000\n",
        "memory.stat": "anon 7\ninactive_file 900\nactive_file 100\n",
    }
    for name, text in files.items():
        if text is not None:
            (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    assert memory.available_bytes() == (301_000 if limit == "400000\n" else 512_000)
