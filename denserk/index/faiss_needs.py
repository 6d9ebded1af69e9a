"""What building an index of faiss holds in memory, by its parts, before any of it is there."""

from typing import Any

from denserk.index.faiss_library import inner_indexes, load_faiss
from denserk.index.inverted_lists import ID_BYTES, JOINED_BYTES, ListsOnDisk, held_bytes
from denserk.index.memory_needs import Need
from denserk.settings.retrieval import IndexSettings

FLOAT = LINK = 4
GROWTH = 2
"""An array that grows is copied into a larger one: both are there for a moment."""
TABLE_BYTES = 1 << 31
"""faiss leaves out tables of distances that are larger."""


def building_needs(index: Any, count: int, settings: IndexSettings) -> list[Need]:
    """The memory that training and filling take, interpreter and libraries not counted.

    Args:
        index: as the factory made it, untrained.
        count: how many vectors it will hold.
        settings: how many of them train.
    """
    faiss = load_faiss()
    sample = 0 if index.is_trained else min(count, settings.train_size)
    needs = [Need("the training sample and its residuals", 2 * FLOAT * index.d * sample)]
    parts = list(inner_indexes(faiss, index))
    for ivf in (part for part in parts if isinstance(part, faiss.IndexIVF)):
        quantiser = faiss.downcast_index(ivf.quantizer)
        needs.append(Need("the centroids", ivf.nlist * _row_bytes(faiss, quantiser)))
        if isinstance(ivf, faiss.IndexIVFPQ) and ivf.metric_type == faiss.METRIC_L2:
            table = FLOAT * ivf.nlist * ivf.pq.M * ivf.pq.ksub
            needs.append(Need("tables of distances", table if table <= TABLE_BYTES else 0))
    held = GROWTH * count * _row_bytes(faiss, index)
    if ListsOnDisk.spillable(index) and settings.device == "cpu":
        lists = held_bytes(faiss.extract_index_ivf(index).nlist)
        needs.append(Need("inverted lists", min(held, GROWTH * lists + 2 * JOINED_BYTES)))
    else:
        needs.append(Need("the index", held))
    return needs


def _row_bytes(faiss: Any, index: Any) -> int:
    """What one vector adds to an index."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return _row_bytes(faiss, index.index)
    if isinstance(index, faiss.IndexRefine):
        return _row_bytes(faiss, index.base_index) + _row_bytes(faiss, index.refine_index)
    if isinstance(index, faiss.IndexHNSW):
        links = LINK * (index.hnsw.nb_neighbors(0) + 1) + ID_BYTES
        return _row_bytes(faiss, index.storage) + int(links)
    if isinstance(index, faiss.IndexIVF):
        return int(index.code_size) + ID_BYTES
    if isinstance(index, faiss.IndexFlatCodes):
        return int(index.code_size)
    return FLOAT * int(index.d)


def smaller(index: Any, count: int, dimension: int) -> str:
    """What needs less memory than an index."""
    if ListsOnDisk.spillable(index):
        return "give a smaller --train-size, or fewer lists"
    lists = max(1, int(4 * count**0.5))
    codes = next(m for m in range(max(1, dimension // 8), 0, -1) if dimension % m == 0)
    return f'give --factory "IVF{lists},PQ{codes}": lists go to the disk while it is filled'
