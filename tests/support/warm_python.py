"""A warm stand-in for the Python that ansible-core runs its modules with: `python warm_python.py SOCKET`.

ansible-core starts a new Python for each module, which imports the standard library and `ansible.module_utils` for a
quarter of a second. This process has imported both and forks for each module. `client` below is the program that
ansible-core starts instead of Python: it hands over its arguments, environment, working directory and open files, and
leaves with the exit code. The modules themselves are ansible-core's own, unchanged.
"""

from __future__ import annotations

import array
import contextlib
import importlib
import json
import os
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

_PRELOADED = (
    *("ansible.module_utils.basic", "ansible.module_utils._internal._ansiballz._loader"),
    *("ansible.module_utils.common.file", "ansible.module_utils.common.locale", "ansible.module_utils.urls"),
    *("ansible.module_utils.facts.compat", "ansible.module_utils.facts.ansible_collector", "zipfile", "base64"),
    *("ansible.module_utils._internal._ansiballz._extensions", "ansible.module_utils.facts.default_collectors"),
)

# A client needs few modules, and starts without `site`: it is the only new process of a module's run.
_CLIENT = """\
#!{python} -ISs
import os, sys, _socket
s = _socket.socket(1, 1)
s.connect({socket!r})
e = sys.argv[1:], os.getcwd(), dict(os.environ)
m = repr(e).encode()
fds = (0).to_bytes(4, sys.byteorder) + (1).to_bytes(4, sys.byteorder) + (2).to_bytes(4, sys.byteorder)
s.sendmsg([len(m).to_bytes(8, "big")], [(1, 1, fds)])
s.sendall(m)
os._exit(int(s.recv(8) or b"1"))
"""


def write_client(path: Path, listens_at: Path) -> Path:
    """Write the program that ansible-core is to start instead of Python."""
    path.write_text(_CLIENT.format(python=sys.executable, socket=str(listens_at)), encoding="utf-8")
    path.chmod(0o755)
    return path


def _run_module(argv: list[str], directory: str, environment: dict[str, str]) -> int:
    """What the forked child does with its files already in place; returns its exit code."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, encoding="utf-8") for number, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    try:
        if argv and argv[0] == "-c":
            source, name = argv[1], "<string>"
        elif argv:
            source, name = Path(argv[0]).read_text(encoding="utf-8"), argv[0]
        else:
            source, name = sys.stdin.read(), "<stdin>"
        sys.argv = argv or [""]
        main = importlib.import_module("types").ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(source, name, "exec"), main.__dict__)  # noqa: S102 - as Python runs what it is given
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - as Python does
        traceback.print_exc()
        return 1
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
    return 0


def _receive(connection: socket.socket) -> tuple[list[str], str, dict[str, str], list[int]]:
    descriptors = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_LEN(3 * descriptors.itemsize))
    for _, _, received in ancillary:
        descriptors.frombytes(received)
    text = b""
    while len(text) < int.from_bytes(data, "big"):
        text += connection.recv(1 << 20)
    argv, directory, environment = importlib.import_module("ast").literal_eval(text.decode())
    return argv, directory, environment, list(descriptors)


def serve(listens_at: str) -> None:
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(listens_at)
    listener.listen(64)
    forking = threading.Lock()

    def answer(connection: socket.socket) -> None:
        with connection:
            argv, directory, environment, descriptors = _receive(connection)
            with forking:
                pid = os.fork()
                if pid == 0:
                    code = 1
                    try:
                        for place, descriptor in enumerate(descriptors):
                            os.dup2(descriptor, place)
                            os.close(descriptor)
                        listener.close()
                        connection.close()
                        code = _run_module(argv, directory, environment)
                    finally:
                        os._exit(code)
            for descriptor in descriptors:
                os.close(descriptor)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(OSError):
                connection.sendall(str(code & 255).encode())

    threading.Thread(target=_leave_with_parent, daemon=True).start()
    print(json.dumps({"ready": listens_at}), flush=True)  # noqa: T201 - what the parent waits for
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def _leave_with_parent() -> Any:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
