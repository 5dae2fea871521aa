"""What `inspect` said of environments that have not changed since: below ~/.cache/crossgrade/inspections, private.

An answer holds for as long as every file that could matter has the device, inode, size and times that it had before it
was read, every folder as well, and nothing else that decides differs: the options, LD_LIBRARY_PATH, the loader's cache,
the driver, crossgrade itself. Of a tree in which something is as new as the look at it nothing is kept: its times tell
nothing yet.
"""

from __future__ import annotations

import array
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
_KEPT = 32  # answers; the oldest go
_NEVER_READ = (".pyc", ".pyi", ".h", ".hpp", ".cuh", ".txt", ".json", ".md", ".rst", ".png", ".svg")
_ELSEWHERE = (
    "/etc/ld.so.cache",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/local/lib",
    "/proc/driver/nvidia",
)
_VARIABLES = (
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "TRITON_PTXAS_PATH",
    "TRITON_PTXAS_BLACKWELL_PATH",
    "FLASHINFER_CUDA_ARCH_LIST",
    "BNB_CUDA_VERSION",
)
_TICK = 0.1  # seconds: how far apart two changes of a file may be and still have one time
_FIGURES = 5  # of each file: device, inode, size, time of change, time of change of the inode


@dataclass(frozen=True)
class Answer:
    """What was said: the exit code, the JSON document, and the lines, `(text, style)`, few and all."""

    code: int
    document: str
    lines: Sequence[tuple[str, str]]
    verbose_lines: Sequence[tuple[str, str]]


class InspectionCache:
    """For one set of options. `place` is the folder, `roots` are the trees that are read."""

    def __init__(self, place: Path, roots: Sequence[str], options: Mapping[str, Any]) -> None:
        matters = {
            name: value
            for name, value in options.items()
            if name not in ("json", "verbose", "no_cache") and isinstance(value, str | int | list | tuple | None)
        }
        told: list[Any] = [FORMAT, _own_code(), sorted(matters.items()), [os.environ.get(name) for name in _VARIABLES]]
        key = hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()
        self._head = place / f"{key}.head"
        self._document = place / f"{key}.json"
        self._roots = roots
        self._paths: list[str] = []
        self._stamp: str | None = None

    def read(self, *, document: bool) -> Answer | None:
        """What was said the last time, if it still holds; the document only where it is asked for."""
        try:
            head, _, listed = self._head.read_bytes().partition(b"\n")
            known = json.loads(head)
            stamp, _ = _stamp(os.fsdecode(path) for path in listed.split(b"\0"))
            if stamp != known["stamp"]:
                return None
            text = self._document.read_text(encoding="utf-8") if document else ""
            return Answer(known["code"], text, known["lines"], known["verbose_lines"])
        except (OSError, ValueError, KeyError):
            return None

    def look(self) -> None:
        """Note how all files are, before they are read."""
        self._paths = [path for root in self._roots for path in _tree(root)] + list(_ELSEWHERE)
        began = time.time_ns()
        stamp, newest = _stamp(self._paths)
        self._stamp = stamp if newest < began - int(_TICK * 1e9) else None

    def write(self, answer: Answer) -> None:
        """Keep an answer, if the tree could be noted. A folder that cannot be written to is no fault."""
        if self._stamp is None:
            return
        head = {
            "stamp": self._stamp, "code": answer.code, "lines": answer.lines, "verbose_lines": answer.verbose_lines,
        }  # fmt: skip
        listed = b"\0".join(os.fsencode(path) for path in self._paths)
        try:
            self._head.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(self._document, answer.document.encode())
            _replace(self._head, json.dumps(head).encode() + b"\n" + listed)
            kept = sorted(self._head.parent.glob("*.head"), key=lambda path: path.stat().st_mtime, reverse=True)
            for old in kept[_KEPT:]:
                old.unlink(missing_ok=True)
                old.with_suffix(".json").unlink(missing_ok=True)
        except OSError:
            return


def cache_for(options: Mapping[str, Any]) -> InspectionCache | None:
    """The cache for what is asked; None for wheels and single files, and with `--no-cache`."""
    paths = [os.path.abspath(os.path.expanduser(path)) for path in options["path"] or ()]  # noqa: PTH100, PTH111
    others = [os.path.abspath(os.path.expanduser(options[name])) for name in ("against", "compare") if options[name]]  # noqa: PTH100, PTH111
    if options["no_cache"] or not paths or not all(map(os.path.isdir, paths)):
        return None
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    roots = [*paths, *others]
    return InspectionCache(Path(home) / "crossgrade" / "inspections", roots, {**options, "path": paths, "roots": roots})


def _tree(root: str) -> Iterable[str]:
    """All folders below one, and the files in them that an inspection may read."""
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        yield folder
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    waiting.append(entry.path)
            elif not entry.name.endswith(_NEVER_READ):
                yield entry.path


def _stamp(paths: Iterable[str]) -> tuple[str, int]:
    """A digest of what the file system says of these paths, and the newest of the times, in nanoseconds."""
    figures = array.array("q")
    newest = 0
    add, stat = figures.extend, os.stat
    for path in paths:
        try:
            status = stat(path)
        except OSError:
            add((0,) * _FIGURES)
            continue
        changed = status.st_ctime_ns
        add((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, changed))
        if changed > newest:
            newest = changed
    return hashlib.blake2b(figures.tobytes(), digest_size=16).hexdigest(), newest


def _own_code() -> list[int]:
    """The times of our own files: another version says other things."""
    package = Path(__file__).parent.parent
    folders = (package / name for name in ("inspect", "gates", "knowledge", "commands"))
    return sorted(entry.stat().st_mtime_ns for folder in folders for entry in os.scandir(folder) if entry.is_file())


def _replace(path: Path, data: bytes) -> None:
    """In one step, readable by the owner only; it need not survive a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
    temporary.rename(path)
