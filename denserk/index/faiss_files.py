"""Files of faiss' indexes: reading, writing and merging.

Files are merged into one by faiss' `merge_from` if that fits in memory, else into a second file,
`index.ivfdata`, by faiss' `OnDiskInvertedLists`.
"""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from denserk.errors import InputError, OutputError
from denserk.index import memory
from denserk.index.faiss_library import ID_BYTES, faiss_errors, load_faiss, mergeable_ivf
from denserk.io.files import whole_binary
from denserk.reporting import track

logger = logging.getLogger(__name__)


def lists_file(path: Path) -> Path:
    """Return where the inverted lists of an index are stored that are not in its own file."""
    return path.with_name(f"{path.name}.ivfdata")


def read_index(path: Path, *, mapped: bool = True) -> Any:
    """Read an index; if `mapped`, its codes, graphs and inverted lists stay on the disk.

    An index whose lists have their own file names that file. The file beside the index is opened
    instead, so that a folder can be moved (as by IO_FLAG_ONDISK_SAME_DIR, which prints to stdout).
    """
    faiss, lists = load_faiss(), lists_file(path)
    what = "a file that faiss cannot read"
    with faiss_errors(lambda why: InputError(path, None, f"{what} ({why})", "a faiss index")):
        if not lists.exists():
            return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mapped else 0)
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
        stored = faiss.downcast_InvertedLists(faiss.extract_index_ivf(index).invlists)
        if lists.stat().st_size < stored.totsize:  # faiss would read past the end of the file
            raise RuntimeError(f"{lists.name} has {lists.stat().st_size:,} bytes")
        stored.filename, stored.read_only = str(lists), True
        stored.do_mmap()
    return index


def write_index(index: Any, path: Path) -> None:
    """Write an index to a temporary file, and rename it."""
    with whole_binary(path) as handle, faiss_errors(lambda reason: _unwritten(path, reason)):
        load_faiss().write_index(index, handle.name)


def _unwritten(path: Path, reason: str) -> OutputError:
    return OutputError(f"{path} cannot be written: {reason}")


def merge_files(index: Any, files: Sequence[Path], path: Path) -> None:
    """Merge the vectors of index files into an empty index, their template, and write it to `path`.

    Ids, from 0 in each file, are renumbered. Lists too large for memory go to a second file beside
    `path`.
    """
    sizes = [file.stat().st_size for file in files]
    needed, available = sum(sizes) + max(sizes), memory.available_bytes()
    separate = any(lists_file(file).exists() for file in files)
    if not separate and (available is None or needed <= available):
        with track("merging indexes", len(files), "files") as progress:
            for file in files:
                index.merge_from(read_index(file, mapped=False), index.ntotal)
                progress.advance()
        write_index(index, path)
        return

    faiss, ivf, target = load_faiss(), mergeable_ivf(index), lists_file(path)
    logger.info(f"inverted lists go to {target.name}: open the index with denserk")
    parts = [read_index(file) for file in files]
    count = sum(part.ntotal for part in parts)
    size, free = count * (ivf.code_size + ID_BYTES), shutil.disk_usage(target.parent).free
    if size > free:  # faiss writes through a memory map: a full disk would kill the process
        raise _unwritten(target, f"it takes {decimal(size)}, and {decimal(free)} are free")
    sources = faiss.InvertedListsPtrVector()
    for part in parts:
        sources.push_back(mergeable_ivf(part).invlists)
    with faiss_errors(lambda reason: _unwritten(target, reason)):
        lists = faiss.OnDiskInvertedLists(ivf.nlist, ivf.code_size, str(target))
        lists.merge_from_multiple(sources.data(), sources.size())
    # faiss' own `shift_ids` is wrong for files of different sizes (faiss 1.15)
    for number in range(ivf.nlist):
        first, offset = 0, 0
        ids = faiss.rev_swig_ptr(lists.get_ids(number), lists.list_size(number))
        for part, source in enumerate(parts):
            last = first + sources.at(part).list_size(number)
            ids[first:last] += offset
            first, offset = last, offset + source.ntotal
    lists.filename = target.name  # the folder can be moved
    index.ntotal = ivf.ntotal = count
    ivf.replace_invlists(lists, True)
    lists.this.disown()  # the index deletes them
    write_index(index, path)
