"""A fork server: `denserk` commands for tests of the docs, without seconds of imports for each.

`python -m tests.support.warm FOLDER` imports denserk and its libraries once, then waits for calls
at a socket, until its standard input closes. It writes two small programs: FOLDER/denserk, and
FOLDER/python-warm, which runs a Python file. Each sends its arguments, folder, variables and
streams to the server, which forks; the fork takes them over, runs the command as a new process
would, and its exit status goes back.
"""

import atexit
import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

CLIENT = """#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
call = json.dumps([os.getcwd(), dict(os.environ), sys.argv]).encode()
socket.send_fds(server, [len(call).to_bytes(4, "big")], [0, 1, 2])
server.sendall(call)
sys.exit(int(server.recv(3) or b"1"))
"""
LATE = ["accelerate", "bm25s", "datasets", "faiss", "matplotlib.figure", "peft", "torch._dynamo"]
LATE += [f"transformers.models.{kind}.modeling_{kind}" for kind in ("bert", "distilbert", "t5")]


def run(arguments: list[str]) -> int:
    """Run one command in this process."""
    sys.argv[:] = arguments
    try:
        if Path(arguments[0]).name == "denserk":
            runpy.run_module("denserk", run_name="__main__")
        else:
            runpy.run_path(arguments[1], run_name="__main__")
        status: Any = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:  # noqa: BLE001  (as Python ends)
        sys.excepthook(*sys.exc_info())
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return status if isinstance(status, int) else 1


def serve(folder: Path) -> None:
    """Fork for each call; the fork takes the folder, variables and streams of its client."""
    calls = socket.create_server(str(folder / "socket"), family=socket.AF_UNIX)
    for name in ("python-warm", "denserk"):
        text = CLIENT.format(python=sys.executable, address=str(folder / "socket"))
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while sys.stdin not in select.select([calls, sys.stdin], [], [])[0]:
        call, _ = calls.accept()
        if os.fork():
            call.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        calls.close()
        size, descriptors, *_ = socket.recv_fds(call, 4, 3)
        with call.makefile("rb") as stream:
            folder_of_call, environment, arguments = json.loads(
                stream.read(int.from_bytes(size, "big"))
            )
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin = open(0)  # noqa: SIM115
        sys.stdout = open(1, "w")  # noqa: SIM115
        sys.stderr = open(2, "w")  # noqa: SIM115
        os.chdir(folder_of_call)
        os.environ.clear()
        os.environ.update(environment)
        status = run(arguments)
        sys.stderr.flush()
        call.sendall(str(status % 256).encode())
        os._exit(0)


if __name__ == "__main__":
    sys.modules["openvino"] = None  # type: ignore[assignment]  # compiling takes long
    for module in pkgutil.walk_packages(["denserk"], "denserk."):
        if "integrations" not in module.name and not module.name.endswith("__main__"):
            import_module(module.name)
    for library in (*LATE, "torch._inductor", "transformers.trainer_pt_utils"):
        import_module(library)
    gc.freeze()  # forks share the pages of what is imported
    serve(Path(sys.argv[1]))
