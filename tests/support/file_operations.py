"""Records what a command does to the files below a folder, by strace.

strace sees what libraries write outside Python, too. Writes through a shared memory map are no
system calls: `Recording.mapped` names the files that are written so, which are not covered.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = 0  # number of the folder that is recorded
CALLS = """
    open openat creat close dup dup2 dup3 fcntl lseek read readv
    write pwrite64 writev pwritev pwritev2 truncate ftruncate fallocate sendfile copy_file_range
    rename renameat renameat2 link linkat symlink symlinkat unlink unlinkat mkdir mkdirat rmdir
    fsync fdatasync sync syncfs mmap clone clone3 fork vfork chdir fchdir io_uring_setup
"""


class Write(NamedTuple):
    """Bytes that are written into a file."""

    file: int
    offset: int
    data: bytes


class Truncate(NamedTuple):
    """A file that is cut, or extended by zeros."""

    file: int
    size: int


class Enter(NamedTuple):
    """A name that a folder gets: of a new file, a new folder, or a second name of a file."""

    folder: int
    name: str
    target: int


class Remove(NamedTuple):
    """A name that leaves a folder."""

    folder: int
    name: str


class Rename(NamedTuple):
    """A name that moves; the target's, if it had one, goes in the same moment."""

    folder: int
    name: str
    new_folder: int
    new_name: str
    target: int


class Exchange(NamedTuple):
    """Two names that are exchanged."""

    folder: int
    name: str
    new_folder: int
    new_name: str
    target: int
    new_target: int


class Sync(NamedTuple):
    """An fsync of a file or a folder; of everything if `target` is None."""

    target: int | None


Operation = Write | Truncate | Enter | Remove | Rename | Exchange | Sync


@dataclass
class Files:
    """Files and folders by number; a folder maps names to numbers."""

    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    contents: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path) -> "Files":
        """Read a folder and what lies below it."""
        files = cls()
        numbers = {root: ROOT}
        for path in sorted(root.rglob("*")):
            number = len(numbers)
            numbers[path] = number
            files.folders[numbers[path.parent]][path.name] = number
            if path.is_dir():
                files.folders[number] = {}
            else:
                files.contents[number] = path.read_bytes()
        return files

    def copy(self) -> "Files":
        """Return files that can be changed apart from these."""
        folders = {number: dict(names) for number, names in self.folders.items()}
        return Files(folders, dict(self.contents))

    def tree(self, folder: int = ROOT, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield the paths below a folder and their numbers, folders before what they hold."""
        for name, number in sorted(self.folders[folder].items()):
            yield prefix + name, number
            if number in self.folders:
                yield from self.tree(number, f"{prefix}{name}/")


def written(content: bytes, write: Write) -> bytes:
    """Return a file's content after a write; a gap before it is filled with zeros."""
    start = content[: write.offset].ljust(write.offset, b"\0")
    return start + write.data + content[write.offset + len(write.data) :]


def truncated(content: bytes, size: int) -> bytes:
    """Return a file's content of another size."""
    return content[:size].ljust(size, b"\0")


def apply_to_names(files: Files, operation: Operation) -> None:
    """Change the names in `files` as an operation does; a folder keeps its names when it goes."""
    match operation:
        case Enter(folder, name, target):
            files.folders[folder][name] = target
        case Remove(folder, name):
            files.folders[folder].pop(name, None)
        case Rename(folder, name, new_folder, new_name, target):
            files.folders[folder].pop(name, None)
            files.folders[new_folder][new_name] = target
        case Exchange(folder, name, new_folder, new_name, target, new_target):
            files.folders[folder][name] = new_target
            files.folders[new_folder][new_name] = target


@dataclass
class Recording:
    """What a command did: the files before it, its operations in order, and the files after it."""

    before: Files
    operations: list[Operation]
    after: Files
    mapped: list[str]  # files written through a shared memory map: not covered

    @property
    def syncs(self) -> int:
        """How many times the command waited for the disk."""
        return sum(isinstance(operation, Sync) for operation in self.operations)


def why_not() -> str | None:
    """Return why nothing can be recorded here, or None."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    traced = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-o", os.devnull, "true"],
        capture_output=True,
        check=False,
    )
    return None if traced.returncode == 0 else "strace may not trace here, or is too old"


def record(command: Sequence[str], root: Path, environment: Mapping[str, str]) -> Recording:
    """Run a command in a folder, and record what it does to the files there."""
    root = root.resolve()
    before = Files.read(root)
    trace = root.with_name(f"{root.name}.strace")
    options = ["-f", "-y", "--seccomp-bpf", "-xx", "-s", str(1 << 26), "-e", "signal=none"]
    options += ["-e", "raw=read,readv", "-e", f"trace={','.join(CALLS.split())}", "-o", str(trace)]
    traced = subprocess.run(
        ["strace", *options, *command],
        cwd=root,
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert traced.returncode == 0, traced.stdout + traced.stderr
    reader = _TraceReader(root, before.copy())
    with trace.open("rb") as lines:
        for line in lines:
            reader.read(line)
    trace.unlink()
    recording = Recording(before, reader.operations, reader.files, sorted(reader.mapped))
    compare(reader.files, Files.read(root), reader.mapped)
    return recording


def compare(replayed: Files, stored: Files, mapped: set[str]) -> None:
    """Compare the recorded files with those of the disk: nothing was overlooked."""
    replayed_tree = dict(replayed.tree())
    stored_tree = dict(stored.tree())
    differing = replayed_tree.keys() ^ stored_tree.keys()
    assert not differing, differing
    for path, number in replayed_tree.items():
        if number in replayed.contents and path not in mapped:
            same = replayed.contents[number] == stored.contents[stored_tree[path]]
            assert same, f"{path}: recorded and stored bytes differ"


@dataclass
class _OpenFile:
    number: int  # of a file or a folder
    offset: int = 0
    appends: bool = False


@dataclass
class _Process:
    """Open files by descriptor, shared by threads; only those below the recorded folder."""

    folder: str
    open_files: dict[int, _OpenFile] = field(default_factory=dict)


CALL = re.compile(rb"(\d+) +(\w+)\((.*)\) += (-?\w+|\?)(.*)", re.DOTALL)
STRING = re.compile(rb'"((?:\\x[0-9a-f]{2})*)"')
DESCRIPTOR = re.compile(rb"(AT_FDCWD|\d+)<((?:\\x[0-9a-f]{2})*)[^>]*>")
UNFINISHED = b" <unfinished ...>\n"
RESUMED = re.compile(rb"(\d+) +<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
SHARES_FILES = b"CLONE_FILES"


def _bytes(escaped: bytes) -> bytes:
    return bytes.fromhex(escaped.replace(b"\\x", b"").decode("ascii"))


@dataclass
class _Call:
    """A finished system call, whose arguments are parsed where they are needed."""

    name: str
    arguments: bytes
    result: int

    @property
    def strings(self) -> list[bytes]:
        return [_bytes(text) for text in STRING.findall(self.arguments)]

    @property
    def descriptors(self) -> list[int]:
        numbers = [number for number, _ in DESCRIPTOR.findall(self.arguments)]
        return [-1 if number == b"AT_FDCWD" else int(number) for number in numbers]

    @property
    def numbers(self) -> list[int]:
        """The arguments, of which numbers count: behind strings, descriptors and structures."""
        plain = STRING.sub(b"TEXT", DESCRIPTOR.sub(b"FD", self.arguments))
        return [int(text) for text in plain.split(b", ") if re.fullmatch(rb"-?\d+", text)]

    def paths(self, working_folder: str) -> list[str]:
        """Return the absolute paths of the call, each relative to the descriptor before it."""
        paths = []
        folder = working_folder
        pattern = rb"(?:AT_FDCWD|\d+)<((?:\\x[0-9a-f]{2})*)[^>]*>|" + STRING.pattern
        for match in re.finditer(pattern, self.arguments):
            if match[1] is not None:
                folder = os.fsdecode(_bytes(match[1]))
            else:
                path = os.fsdecode(_bytes(match[2]))
                paths.append(os.path.normpath(os.path.join(folder, path)))  # noqa: PTH118
        return paths


class _Entry(NamedTuple):
    """A name in a folder, which may or may not be there."""

    folder: int
    name: str


class _TraceReader:
    """Turns lines of strace into operations, and follows them on the files themselves."""

    def __init__(self, root: Path, files: Files) -> None:
        self.root = str(root)
        self.files = files
        self.operations: list[Operation] = []
        self.mapped: set[str] = set()
        self._count = 1 + len(list(self.files.tree()))
        self._processes: dict[bytes, _Process] = {}
        self._unfinished: dict[bytes, bytes] = {}

    def read(self, line: bytes) -> None:
        """Read a line; a call that another thread interrupts counts when it returns."""
        process_id = line.split(b" ", 1)[0]
        process = self._process(process_id)
        if line.endswith(UNFINISHED):
            self._unfinished[process_id] = line.removesuffix(UNFINISHED)
            return
        resumed = RESUMED.fullmatch(line)
        if resumed is not None:
            line = self._unfinished.pop(process_id) + resumed[3]
        match = CALL.fullmatch(line)
        if match is None or match[4] == b"?" or match[4].startswith(b"-"):
            return  # the end of a process, or a call that failed
        call = _Call(match[2].decode(), match[3], int(match[4], 0))
        if call.name in ("clone", "clone3", "fork", "vfork"):
            self._processes.setdefault(str(call.result).encode(), _child(process, call.arguments))
            return
        follow = getattr(self, f"_{_METHODS.get(call.name, call.name)}")
        follow(process, call)

    def _process(self, process_id: bytes) -> _Process:
        if process_id not in self._processes:
            self._processes[process_id] = self._new_process()
        return self._processes[process_id]

    def _new_process(self) -> _Process:
        """Return a process that is seen before its parent's call returns, or the first one."""
        for parent, call in self._unfinished.items():
            if b" clone" in call or b"fork(" in call:
                return _child(self._processes[parent], call)
        return _Process(self.root)

    def _entry(self, path: str) -> _Entry | None:
        """Return the entry of a path, if it is below the root."""
        if not path.startswith(self.root + "/"):
            return None
        *parents, name = path.removeprefix(self.root + "/").split("/")
        folder = ROOT
        for parent in parents:
            folder = self.files.folders[folder][parent]
        return _Entry(folder, name)

    def _number(self, entry: _Entry) -> int:
        """Return the number of the file or folder that has a name."""
        return self.files.folders[entry.folder][entry.name]

    def _do(self, operation: Operation) -> None:
        self.operations.append(operation)
        match operation:
            case Write(file):
                self.files.contents[file] = written(self.files.contents[file], operation)
            case Truncate(file, size):
                self.files.contents[file] = truncated(self.files.contents[file], size)
            case _:
                apply_to_names(self.files, operation)

    def _new(self, entry: _Entry, *, is_folder: bool = False) -> int:
        """Add an empty file or folder; return its number."""
        number = self._count
        self._count += 1
        if is_folder:
            self.files.folders[number] = {}
        else:
            self.files.contents[number] = b""
        self._do(Enter(entry.folder, entry.name, number))
        return number

    # a system call each

    def _open(self, process: _Process, call: _Call) -> None:
        process.open_files.pop(call.result, None)
        path = call.paths(process.folder)[0]
        if path == self.root:
            process.open_files[call.result] = _OpenFile(ROOT)
            return
        if not path.startswith(self.root + "/"):
            return
        flags = b"O_CREAT|O_TRUNC" if call.name == "creat" else call.arguments
        entry = self._entry(path)
        assert entry is not None
        number = self.files.folders[entry.folder].get(entry.name)
        if number is None:
            assert b"O_CREAT" in flags, f"{path} was opened, and has not been seen"
            number = self._new(entry)
        elif b"O_TRUNC" in flags and self.files.contents[number]:
            self._do(Truncate(number, 0))
        process.open_files[call.result] = _OpenFile(number, appends=b"O_APPEND" in flags)

    def _close(self, process: _Process, call: _Call) -> None:
        if call.descriptors:
            process.open_files.pop(call.descriptors[0], None)

    def _opened(self, process: _Process, call: _Call) -> _OpenFile | None:
        """Return the open file that a call is for, if it is below the root."""
        return process.open_files.get(call.descriptors[0])

    def _dup(self, process: _Process, call: _Call) -> None:
        opened = self._opened(process, call)
        if opened is not None and (call.name != "fcntl" or b"F_DUPFD" in call.arguments):
            process.open_files[call.result] = opened
        elif call.name != "fcntl":
            process.open_files.pop(call.result, None)

    def _lseek(self, process: _Process, call: _Call) -> None:
        opened = self._opened(process, call)
        if opened is not None:
            opened.offset = call.result

    def _read(self, process: _Process, call: _Call) -> None:
        descriptor = int(call.arguments.split(b",", 1)[0], 0)
        opened = process.open_files.get(descriptor)
        if opened is not None:
            opened.offset += call.result

    def _write(self, process: _Process, call: _Call) -> None:
        opened = self._opened(process, call)
        if opened is None:
            return
        data = b"".join(call.strings)[: call.result]
        if call.name.startswith("p"):
            offset = call.numbers[1]  # behind the number of bytes, or of buffers
            self._do(Write(opened.number, offset, data))
            return
        self._append(opened, data)

    def _append(self, opened: _OpenFile, data: bytes) -> None:
        """Write at the place where an open file stands."""
        if opened.appends:
            opened.offset = len(self.files.contents[opened.number])
        self._do(Write(opened.number, opened.offset, data))
        opened.offset += len(data)

    def _copy(self, process: _Process, call: _Call) -> None:
        source, target = DESCRIPTOR.findall(call.arguments)
        offsets = re.findall(rb"\[(\d+)\]", call.arguments)
        if call.name == "sendfile":
            source, target = target, source
        else:
            assert not offsets, "copy_file_range with offsets is not covered"
        target_descriptor, _ = target
        opened_target = process.open_files.get(int(target_descriptor))
        if opened_target is None:
            return
        source_descriptor, source_path = source
        opened_source = process.open_files.get(int(source_descriptor))
        if opened_source is not None:
            content = self.files.contents[opened_source.number]
        else:
            content = Path(os.fsdecode(_bytes(source_path))).read_bytes()  # elsewhere, unchanged
        if offsets:
            start = int(offsets[0])
        else:
            assert opened_source is not None, "sendfile without an offset is not covered"
            start = opened_source.offset
            opened_source.offset += call.result
        self._append(opened_target, content[start : start + call.result])

    def _ftruncate(self, process: _Process, call: _Call) -> None:
        opened = self._opened(process, call)
        if opened is not None:
            self._do(Truncate(opened.number, call.numbers[0]))

    def _truncate(self, process: _Process, call: _Call) -> None:
        entry = self._entry(call.paths(process.folder)[0])
        if entry is not None:
            self._do(Truncate(self._number(entry), call.numbers[0]))

    def _fallocate(self, process: _Process, call: _Call) -> None:
        opened = self._opened(process, call)
        if opened is not None:
            assert call.numbers[0] == 0, "fallocate with a mode is not covered"
            size = max(sum(call.numbers[1:]), len(self.files.contents[opened.number]))
            self._do(Truncate(opened.number, size))

    def _rename(self, process: _Process, call: _Call) -> None:
        old_entry, new_entry = map(self._entry, call.paths(process.folder))
        if old_entry is None and new_entry is None:
            return
        assert old_entry is not None, "a file that comes from elsewhere is not covered"
        assert new_entry is not None, "a file that goes elsewhere is not covered"
        target = self._number(old_entry)
        if b"RENAME_EXCHANGE" in call.arguments:
            self._do(Exchange(*old_entry, *new_entry, target, self._number(new_entry)))
        else:
            self._do(Rename(*old_entry, *new_entry, target))

    def _link(self, process: _Process, call: _Call) -> None:
        old_entry, new_entry = map(self._entry, call.paths(process.folder))
        if new_entry is not None:
            assert old_entry is not None, "a link to a file elsewhere is not covered"
            self._do(Enter(*new_entry, self._number(old_entry)))

    def _symlink(self, process: _Process, call: _Call) -> None:
        raise AssertionError("a symbolic link is not covered")

    def _unlink(self, process: _Process, call: _Call) -> None:
        entry = self._entry(call.paths(process.folder)[0])
        if entry is not None:
            self._do(Remove(entry.folder, entry.name))

    def _mkdir(self, process: _Process, call: _Call) -> None:
        entry = self._entry(call.paths(process.folder)[0])
        if entry is not None:
            self._new(entry, is_folder=True)

    def _fsync(self, process: _Process, call: _Call) -> None:
        opened = self._opened(process, call)
        if opened is not None:
            self._do(Sync(opened.number))

    def _sync(self, process: _Process, call: _Call) -> None:
        self._do(Sync(None))

    def _mmap(self, process: _Process, call: _Call) -> None:
        if b"MAP_SHARED" not in call.arguments or b"PROT_WRITE" not in call.arguments:
            return
        for descriptor in call.descriptors:
            opened = process.open_files.get(descriptor)
            if opened is not None:
                paths_by_number = {number: path for path, number in self.files.tree()}
                self.mapped.add(paths_by_number.get(opened.number, "a file without a name"))

    def _chdir(self, process: _Process, call: _Call) -> None:
        process.folder = call.paths(process.folder)[0]

    def _refuse(self, process: _Process, call: _Call) -> None:
        raise AssertionError(f"{call.name} is not covered")


def _child(parent: _Process, call: bytes) -> _Process:
    """Return the process of a new thread, or of a new process with the same open files."""
    return parent if SHARES_FILES in call else _Process(parent.folder, dict(parent.open_files))


# the method that follows a system call, where it has another name
_METHODS = {
    **dict.fromkeys(("openat", "creat"), "open"),
    **dict.fromkeys(("dup2", "dup3", "fcntl"), "dup"),
    **dict.fromkeys(("readv",), "read"),
    **dict.fromkeys(("pwrite64", "writev", "pwritev", "pwritev2"), "write"),
    **dict.fromkeys(("sendfile", "copy_file_range"), "copy"),
    **dict.fromkeys(("renameat", "renameat2"), "rename"),
    **dict.fromkeys(("linkat",), "link"),
    **dict.fromkeys(("symlinkat",), "symlink"),
    **dict.fromkeys(("unlinkat", "rmdir"), "unlink"),
    **dict.fromkeys(("mkdirat",), "mkdir"),
    **dict.fromkeys(("fdatasync",), "fsync"),
    **dict.fromkeys(("syncfs",), "sync"),
    **dict.fromkeys(("fchdir", "io_uring_setup"), "refuse"),
}
