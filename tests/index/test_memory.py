import pytest

from denserk.index import memory


@pytest.mark.parametrize(
    ("limit", "available"),
    [
        ("400000\n", 400_000 - 100_000 + 900 + 100),  # the cache of files is given back
        ("max\n", 500 * 1024),  # a container without a limit
        (None, 500 * 1024),  # no container
    ],
)
def test_available_memory(monkeypatch, tmp_path, limit, available):
    files = {
        "meminfo": "MemFree: 9 kB\nMemAvailable:  500 kB\n",
        "memory.current": "100000\n",
        "memory.stat": "anon 7\ninactive_file 900\nactive_file 100\n",
    }
    if limit is not None:
        files["memory.max"] = limit
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.available_bytes() == available
