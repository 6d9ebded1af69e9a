import pytest

from denserk.errors import UsageError
from denserk.index import memory_needs
from denserk.index.faiss_building import tell_memory
from denserk.index.faiss_needs import building_needs, smaller
from denserk.settings.retrieval import IndexSettings, Metric
from tests.reporters import Heard

faiss = pytest.importorskip("faiss")
MILLION = 1_000_000
SAMPLE = 2 * 4 * 64 * 262_144


def needs_of(factory, metric=Metric.INNER, **settings):
    number = faiss.METRIC_L2 if metric is Metric.L2 else faiss.METRIC_INNER_PRODUCT
    index = faiss.index_factory(64, factory, number)
    found = building_needs(index, MILLION, IndexSettings(factory=factory, **settings))
    return {need.what.split()[-1]: need.size for need in found if need.size}


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("SQ8", {"residuals": SAMPLE, "index": 2 * 64 * MILLION}),
        ("HNSW8,Flat", {"index": 2 * MILLION * (256 + 4 * 17 + 8)}),
        ("PCA32,PQ8", {"residuals": SAMPLE, "index": 2 * 8 * MILLION}),
        (
            "IVF16,PQ8,RFlat",
            {"residuals": SAMPLE, "centroids": 16 * 256, "index": 2 * MILLION * (8 + 8 + 256)},
        ),
        (
            "IVF65536_HNSW32,PQ8",
            {
                "residuals": SAMPLE,
                "centroids": 65_536 * (256 + 4 * 65 + 8),
                "lists": 2 * 16 * MILLION,
            },
        ),
    ],
)
def test_the_parts(factory, expected):
    assert needs_of(factory) == expected


def test_lists_do_not_grow_with_the_vectors():
    index = faiss.index_factory(64, "IVF16,PQ8")
    few, many = (
        building_needs(index, count, IndexSettings(factory="IVF16,PQ8"))
        for count in (100 * MILLION, 1000 * MILLION)
    )
    assert few == many
    assert needs_of("IVF16,PQ8", train_size=1000)["residuals"] == 2 * 4 * 64 * 1000


def test_tables_of_distances_up_to_what_faiss_keeps():
    assert needs_of("IVF16,PQ8", Metric.L2)["distances"] == 4 * 16 * 8 * 256
    assert "distances" not in needs_of("IVF65536,PQ64", Metric.L2)


@pytest.mark.parametrize(
    ("factory", "hint"),
    [
        ("HNSW8,Flat", 'give --factory "IVF4000,PQ8": lists go to the disk while it is filled'),
        ("IVF16,SQ8", "give a smaller --train-size, or fewer lists"),
    ],
)
def test_the_alternative(factory, hint):
    assert smaller(faiss.index_factory(64, factory), MILLION, 64) == hint


def test_what_cannot_fit_is_refused(monkeypatch):
    settings = IndexSettings(factory="PQ4x4", train_size=10_000)
    reporter = Heard()
    tell_memory(MILLION, 16, settings)
    parts = "(the training sample and its residuals 1.3 MB, the index 4.0 MB)"
    assert reporter.notes == [f"building PQ4x4 needs 5.3 MB of memory {parts}"]
    monkeypatch.setattr(memory_needs, "available_bytes", lambda: 1000)
    with pytest.raises(UsageError, match=r"and 0\.0 MB can be had") as refused:
        tell_memory(MILLION, 16, settings)
    assert "IVF4000,PQ2" in str(refused.value.hint)
