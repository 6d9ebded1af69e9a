"""Files of faiss' indexes: reading, writing and merging.

Files are merged into one by faiss' `merge_from` if that fits in memory. Else the inverted lists go
to a second file, `index.ivfdata`, by faiss' `OnDiskInvertedLists`.
"""

import logging
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from denserk.errors import InputError, OutputError
from denserk.index import memory
from denserk.index.faiss_library import (
    ID_BYTES,
    faiss_errors,
    load_faiss,
    mergeable_ivf,
    replace_lists,
)
from denserk.io.written_files import whole_binary
from denserk.reporting import track

logger = logging.getLogger(__name__)


def lists_file(path: Path) -> Path:
    """Return the second file of an index, for inverted lists that were too large for memory."""
    return path.with_name(f"{path.name}.ivfdata")


def read_index(path: Path, *, mapped: bool = True) -> Any:
    """Read an index; if `mapped`, its codes, graphs and inverted lists stay on the disk."""
    faiss = load_faiss()
    with faiss_errors(partial(_read_error, path)):
        if lists_file(path).exists():
            return _read_with_lists_file(path)
        flags = faiss.IO_FLAG_MMAP_IFC if mapped else 0
        return faiss.read_index(str(path), flags)


def _read_with_lists_file(path: Path) -> Any:
    """Read an index whose inverted lists are in a file beside it, where they stay.

    The index names that file. The file beside the index is opened instead, so that a folder can be
    moved (as by IO_FLAG_ONDISK_SAME_DIR, which prints to stdout).
    """
    faiss = load_faiss()
    index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
    lists = faiss.downcast_InvertedLists(faiss.extract_index_ivf(index).invlists)
    file = lists_file(path)
    size = file.stat().st_size
    if size < lists.totsize:  # faiss would read past the end of the file
        raise _read_error(path, f"{file.name} has {size:,} bytes")
    lists.filename = str(file)
    lists.read_only = True
    lists.do_mmap()
    return index


def _read_error(path: Path, reason: str) -> InputError:
    """Return the error of a file that faiss cannot read."""
    return InputError(path, None, f"a file that faiss cannot read ({reason})", "a faiss index")


def write_index(index: Any, path: Path) -> None:
    """Write an index to a temporary file, and rename it."""
    with whole_binary(path) as handle, faiss_errors(partial(_write_error, path)):
        load_faiss().write_index(index, handle.name)


def _write_error(path: Path, reason: str) -> OutputError:
    """Return the error of a file that cannot be written."""
    return OutputError(f"{path} cannot be written: {reason}")


def merge_files(index: Any, files: Sequence[Path], path: Path) -> None:
    """Merge the vectors of index files into an empty index, and write it to `path`.

    All have the same training. Ids, from 0 in each file, are renumbered. Lists too large for memory
    go to a second file beside `path`.
    """
    if _fit_in_memory(files):
        _merge_in_memory(index, files)
    else:
        _merge_on_disk(index, files, lists_file(path))
    write_index(index, path)


def _fit_in_memory(files: Sequence[Path]) -> bool:
    """Return whether a merged index and the file that is being added to it fit in memory."""
    if any(lists_file(file).exists() for file in files):
        return False  # one of them was too large already
    available = memory.available_bytes()
    if available is None:
        return True
    sizes = [file.stat().st_size for file in files]
    return sum(sizes) + max(sizes) <= available


def _merge_in_memory(index: Any, files: Sequence[Path]) -> None:
    """Add the vectors of index files to an index."""
    with track("merging indexes", len(files), "files") as progress:
        for file in files:
            source = read_index(file, mapped=False)
            first_id = index.ntotal  # is added to the ids of the source
            index.merge_from(source, first_id)
            progress.advance()


def _merge_on_disk(index: Any, files: Sequence[Path], target: Path) -> None:
    """Merge the inverted lists of index files into the file `target`, which an index then uses."""
    logger.info(f"inverted lists go to {target.name}: open the index with denserk")
    ivf = mergeable_ivf(index)
    sources = [read_index(file) for file in files]
    count = sum(source.ntotal for source in sources)
    _require_room(target, count * (ivf.code_size + ID_BYTES))
    with faiss_errors(partial(_write_error, target)):
        lists = _merged_lists(sources, ivf, target)
    _renumber_ids(lists, sources)
    # the index records the file's name without a folder, which can be moved: faiss alone does not
    # find it, but `read_index` does
    lists.filename = target.name
    index.ntotal = count
    ivf.ntotal = count
    replace_lists(ivf, lists)


def _require_room(path: Path, size: int) -> None:
    """Raise an OutputError if a file of so many bytes does not fit on its disk.

    faiss writes through a memory map: a full disk would kill the process.
    """
    free = shutil.disk_usage(path.parent).free
    if size > free:
        raise _write_error(path, f"it takes {decimal(size)}, and {decimal(free)} are free")


def _merged_lists(sources: Sequence[Any], ivf: Any, target: Path) -> Any:
    """Return the inverted lists of several indexes in the file `target`, as `ivf` can use them.

    List i is the lists i of all sources, one behind the other.
    """
    faiss = load_faiss()
    lists_of_sources = faiss.InvertedListsPtrVector()
    for source in sources:
        lists_of_sources.push_back(mergeable_ivf(source).invlists)
    lists = faiss.OnDiskInvertedLists(ivf.nlist, ivf.code_size, str(target))
    lists.merge_from_multiple(lists_of_sources.data(), lists_of_sources.size())
    return lists


def _renumber_ids(lists: Any, sources: Sequence[Any]) -> None:
    """Add to the ids of each source, in merged lists, the number of vectors in those before it.

    faiss' own `shift_ids` is wrong for files of different sizes (faiss 1.15).
    """
    faiss = load_faiss()
    lists_of_sources = [mergeable_ivf(source).invlists for source in sources]
    for list_number in range(lists.nlist):
        # a NumPy view of the list in its file: what is added to it is written
        ids = faiss.rev_swig_ptr(lists.get_ids(list_number), lists.list_size(list_number))
        start = 0  # of the source's ids in the list
        first_id = 0  # of the source among all vectors
        for source, source_lists in zip(sources, lists_of_sources, strict=True):
            stop = start + source_lists.list_size(list_number)
            ids[start:stop] += first_id
            start = stop
            first_id += source.ntotal
