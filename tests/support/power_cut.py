"""What a power cut may leave of a run: its file operations, replayed onto a model of a disk.

strace records the run. An operation is certain once something has made it durable: data by fsync or fdatasync of its
file, a change of names by fsync of a directory that it changed, everything by syncfs. Whatever is not certain may be
there, be missing, or (data) be garbage of the right length, each by itself. That is harsher than ext4 or XFS, which
keep the order of changes of names; as on them, a rename as such happens or does not, also across directories.

What other programs write (uv fills the candidate's venv) is there after the syncfs that follows it, and not before.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.small_upgrade import SmallUpgrade

CALLS = (
    "openat,write,pwrite64,ftruncate,fsync,fdatasync,syncfs,rename,renameat2,unlink,unlinkat,rmdir,mkdir,symlink,"
    "link,linkat,sendfile,copy_file_range,fchmod,chmod"
)
_LINE = re.compile(r"^(?P<call>\w+)\((?P<arguments>.*)\)\s+= (?P<result>-?\d+|\?)")
_TOKEN = re.compile(r'(?P<fd>\d+|AT_FDCWD)<(?P<place>(?:\\.|[^>\\])*)>|"(?P<text>(?:\\.|[^"\\])*)"|(?P<word>[^,\s]+)')


@dataclass
class Node:
    """A file (`data`), a link (`target`), a directory (`names`), or a whole tree of the real disk (`tree`)."""

    data: bytearray | None = None
    target: str | None = None
    names: dict[str, Node] | None = None
    tree: Path | None = None
    mode: int = 0o600


@dataclass
class Operation:
    """`nodes` are what makes it certain when it is synced; `apply` does it to a disk, when what it needs is there."""

    name: str
    nodes: tuple[int, ...]
    apply: Apply
    data: bytes | None = None
    certain_from: int | None = None


@dataclass
class Disk:
    """Nodes by number; 0 is the root of everything that is looked at."""

    nodes: dict[int, Node] = field(default_factory=dict)
    names: dict[int, dict[str, int]] = field(default_factory=dict)


Apply = Callable[[Disk, "bytes | None"], object]


def decoded(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", "")) if text else b""


class Recording:
    """The operations of one run below `root`, in order. `before` is a copy of the root from before the run."""

    def __init__(self, upgrade: SmallUpgrade, work: Path) -> None:
        self.root = upgrade.root
        self.before, self.after = work / "before", work / "after"
        subprocess.run(["cp", "-a", self.root, self.before], check=True)
        log = work / "strace.log"
        argv = ["strace", "-qq", "-y", "-xx", "-s", "10000000", "-e", f"trace={CALLS}", "-o", str(log)]
        subprocess.run([*argv, *upgrade.argv("upgrade")], check=True, capture_output=True, stdin=subprocess.DEVNULL)
        subprocess.run(["cp", "-a", self.root, self.after], check=True)
        self.operations: list[Operation] = []
        self._disk, self._next = Disk(), 1
        self._paths: dict[str, int] = {}
        self._offsets: dict[int, int] = {}
        self._load()
        self.start = Disk(dict(self._disk.nodes), {number: dict(names) for number, names in self._disk.names.items()})
        for line in log.read_text().splitlines():
            self._line(line)

    # ---- the tree as it was

    def _load(self) -> None:
        """The root's own files one by one; the working environment as one tree, which nothing may write into."""
        self._disk.names[0] = {}
        for path in sorted(self.before.rglob("*")):
            relative = path.relative_to(self.before)
            if relative.parts[0] == "env" and len(relative.parts) > 1:
                continue
            node = Node(tree=path) if relative.parts[0] == "env" else self._node(path)
            self._put(self._number(relative.parent), relative.name, node)

    @staticmethod
    def _node(path: Path) -> Node:
        if path.is_symlink():
            return Node(target=os.fspath(path.readlink()))
        if path.is_dir():
            return Node(names={}, mode=path.stat().st_mode & 0o7777)
        return Node(data=bytearray(path.read_bytes()), mode=path.stat().st_mode & 0o7777)

    def _put(self, folder: int, name: str, node: Node) -> int:
        number, self._next = self._next, self._next + 1
        self._disk.nodes[number] = node
        if node.names is not None:
            self._disk.names[number] = {}
        self._disk.names[folder][name] = number
        return number

    def _number(self, relative: Path) -> int:
        """The node at a path, now. Raises KeyError when nothing of the model is there."""
        number = 0
        for part in relative.parts:
            number = self._disk.names[number][part]
        return number

    # ---- the log

    def _relative(self, place: str) -> Path | None:
        path = Path(place)
        return path.relative_to(self.root) if path.is_relative_to(self.root) else None

    def _line(self, line: str) -> None:
        match = _LINE.match(line)
        if match is None or match["result"].startswith("-") or match["result"] == "?":
            return
        tokens = list(_TOKEN.finditer(match["arguments"]))
        handler = getattr(self, f"_{match['call'].rstrip('64').replace('renameat2', 'renameat')}", None)
        if handler is not None:
            handler(tokens, line)

    def _path(self, tokens: Sequence[re.Match[str]], at: int) -> tuple[int, str] | None:
        """The folder's node and the name that the string token `at` means, looking at the descriptor before it."""
        text = os.fsdecode(decoded(tokens[at]["text"] or ""))
        if not text.startswith("/") and at > 0 and tokens[at - 1]["place"]:
            text = f"{os.fsdecode(decoded(tokens[at - 1]['place']))}/{text}"
        relative = self._relative(text)
        if relative is None or not relative.parts:
            return None
        try:
            return self._number(relative.parent), relative.name
        except KeyError:
            return None  # inside of a tree that others fill

    def _descriptor(self, token: re.Match[str]) -> int | None:
        relative = self._relative(os.fsdecode(decoded(token["place"] or "")))
        try:
            return None if relative is None else self._number(relative)
        except KeyError:
            return None

    def _do(self, name: str, nodes: tuple[int, ...], apply: Apply, data: bytes | None = None) -> None:
        apply(self._disk, data)
        self.operations.append(Operation(name, nodes, apply, data))

    def _openat(self, tokens: Sequence[re.Match[str]], line: str) -> None:
        place = self._path(tokens, 1)
        result = re.search(r"= (\d+)<", line)
        if place is None or result is None or ("O_WRONLY" not in line and "O_RDWR" not in line):
            return
        folder, name = place
        number = self._disk.names[folder].get(name)
        self._offsets[int(result[1])] = 0
        if number is None:
            if "O_CREAT" not in line:
                return
            number, self._next = self._next, self._next + 1
            found = re.search(r", (0\d+)\)", line)
            mode = int(found[1], 8) if found else 0o600

            def create(disk: Disk, _: bytes | None, number: int = number, mode: int = mode) -> None:
                if folder in disk.names:
                    disk.nodes[number] = Node(data=bytearray(), mode=mode)
                    disk.names[folder][name] = number

            self._do(f"create {name}", (folder,), create)
        elif "O_TRUNC" in line:
            self._resize(number, 0)

    def _write(self, tokens: Sequence[re.Match[str]], line: str) -> None:  # noqa: ARG002 - the handlers' shape
        number, descriptor = self._descriptor(tokens[0]), int(tokens[0]["fd"])
        if number is not None:
            offset = self._offsets.get(descriptor, 0)
            data = decoded(tokens[1]["text"])
            self._offsets[descriptor] = offset + len(data)
            self._data(number, offset, data)

    def _pwrite(self, tokens: Sequence[re.Match[str]], line: str) -> None:  # noqa: ARG002 - the same
        number = self._descriptor(tokens[0])
        if number is not None:
            self._data(number, int(tokens[3]["word"]), decoded(tokens[1]["text"]))

    def _data(self, number: int, offset: int, data: bytes) -> None:
        def write(disk: Disk, data: bytes | None) -> None:
            node = disk.nodes.get(number)
            if node is not None and node.data is not None and data is not None:
                content = bytearray(node.data)
                content.extend(bytes(max(0, offset + len(data) - len(content))))
                content[offset : offset + len(data)] = data
                disk.nodes[number] = Node(data=content, mode=node.mode)

        self._do("write", (number,), write, data)

    def _ftruncate(self, tokens: Sequence[re.Match[str]], line: str) -> None:  # noqa: ARG002 - the same
        number = self._descriptor(tokens[0])
        if number is not None:
            self._resize(number, int(tokens[1]["word"]))

    def _resize(self, number: int, size: int) -> None:
        def resize(disk: Disk, _: bytes | None) -> None:
            node = disk.nodes.get(number)
            if node is not None and node.data is not None:
                disk.nodes[number] = Node(data=(node.data + bytes(size))[:size], mode=node.mode)

        self._do("truncate", (number,), resize)

    def _fsync(self, tokens: Sequence[re.Match[str]], line: str) -> None:  # noqa: ARG002 - the same
        number = self._descriptor(tokens[0])
        if number is not None:
            self._certain(lambda operation: number in operation.nodes)

    _fdatasync = _fsync

    def _syncfs(self, tokens: Sequence[re.Match[str]], line: str) -> None:  # noqa: ARG002 - the same
        self._certain(lambda _: True)
        relative = self._relative(os.fsdecode(decoded(tokens[0]["place"])))
        if relative is not None:  # what others wrote into this generation is durable now
            folder = self._number(relative)
            tree = self.after / relative / "venv"

            def fill(disk: Disk, _: bytes | None) -> None:
                if folder in disk.names:
                    number = -folder
                    disk.nodes[number] = Node(tree=tree)
                    disk.names[folder]["venv"] = number

            self._do("fill", (), fill)
            self.operations[-1].certain_from = len(self.operations) - 1

    def _certain(self, covers: Callable[[Operation], bool]) -> None:
        for operation in self.operations:
            if operation.certain_from is None and covers(operation):
                operation.certain_from = len(self.operations)

    def _rename(self, tokens: Sequence[re.Match[str]], line: str) -> None:
        texts = [at for at, token in enumerate(tokens) if token["text"] is not None]
        old, new = self._path(tokens, texts[0]), self._path(tokens, texts[1])
        if old is None or new is None:
            return
        exchange = "RENAME_EXCHANGE" in line

        def rename(disk: Disk, _: bytes | None) -> None:
            source, target = disk.names.get(old[0]), disk.names.get(new[0])
            if source is None or target is None or old[1] not in source or (exchange and new[1] not in target):
                return
            moved = source.pop(old[1])
            if exchange:
                source[old[1]] = target[new[1]]
            target[new[1]] = moved

        self._do(f"rename {old[1]} {new[1]}", (old[0], new[0]), rename)

    _renameat = _rename

    def _unlink(self, tokens: Sequence[re.Match[str]], line: str) -> None:  # noqa: ARG002 - the same
        place = self._path(tokens, next(at for at, token in enumerate(tokens) if token["text"] is not None))
        if place is not None and place[1] in self._disk.names[place[0]]:
            folder, name = place
            self._do(f"unlink {name}", (folder,), lambda disk, _: disk.names.get(folder, {}).pop(name, None))

    _unlinkat = _rmdir = _unlink

    def _mkdir(self, tokens: Sequence[re.Match[str]], line: str) -> None:  # noqa: ARG002 - the same
        self._new(tokens, 0, lambda: Node(names={}, mode=int(tokens[-1]["word"], 8)))

    def _symlink(self, tokens: Sequence[re.Match[str]], line: str) -> None:  # noqa: ARG002 - the same
        target = os.fsdecode(decoded(tokens[0]["text"]))
        self._new(tokens, 1, lambda: Node(target=target))

    def _link(self, tokens: Sequence[re.Match[str]], line: str) -> None:  # noqa: ARG002 - the same
        texts = [at for at, token in enumerate(tokens) if token["text"] is not None]
        old, new = self._path(tokens, texts[0]), self._path(tokens, texts[1])
        if old is None or new is None:
            return

        def link(disk: Disk, _: bytes | None) -> None:
            source, target = disk.names.get(old[0], {}), disk.names.get(new[0])
            if target is not None and old[1] in source:
                target[new[1]] = source[old[1]]

        self._do(f"link {new[1]}", (new[0],), link)

    _linkat = _link

    def _sendfile(self, tokens: Sequence[re.Match[str]], line: str) -> None:
        self._copied(tokens[0], tokens[1], int(line.rsplit("= ", 1)[1].split()[0]))

    def _copy_file_range(self, tokens: Sequence[re.Match[str]], line: str) -> None:
        self._copied(tokens[2], tokens[0], int(line.rsplit("= ", 1)[1].split()[0]))

    def _copied(self, target: re.Match[str], source: re.Match[str], size: int) -> None:
        """Whole small files, as shutil copies them. What they hold is read from the disk as it is afterwards."""
        number, place = self._descriptor(target), os.fsdecode(decoded(source["place"]))
        relative = self._relative(place)
        if number is None or size == 0:
            return
        other = self._descriptor(source)
        if relative is not None and other is not None:
            content = bytes(self._disk.nodes[other].data or b"")
        else:
            content = Path(place).read_bytes()
        self._data(number, 0, content[:size])

    def _fchmod(self, tokens: Sequence[re.Match[str]], line: str) -> None:  # noqa: ARG002 - the same
        self._mode(self._descriptor(tokens[0]), int(tokens[1]["word"], 8))

    def _chmod(self, tokens: Sequence[re.Match[str]], line: str) -> None:  # noqa: ARG002 - the same
        place = self._path(tokens, 0)
        self._mode(self._disk.names[place[0]].get(place[1]) if place else None, int(tokens[-1]["word"], 8))

    def _mode(self, number: int | None, mode: int) -> None:
        if number is None or number not in self._disk.nodes:
            return

        def change(disk: Disk, _: bytes | None) -> None:
            if number in disk.nodes:
                node = disk.nodes[number]
                disk.nodes[number] = Node(node.data, node.target, node.names, node.tree, mode)

        self._do("mode", (number,), change)

    def _new(self, tokens: Sequence[re.Match[str]], at: int, make: Callable[[], Node]) -> None:
        place = self._path(tokens, at)
        if place is None:
            return
        folder, name = place
        number, self._next = self._next, self._next + 1

        def create(disk: Disk, _: bytes | None) -> None:
            if folder in disk.names:
                disk.nodes[number] = make()
                if disk.nodes[number].names is not None:
                    disk.names[number] = {}
                disk.names[folder][name] = number

        self._do(f"new {name}", (folder,), create)

    # ---- what is left

    def cuts(self) -> list[int]:
        """The moments to cut at: after every operation that is not one of several writes in a row."""
        names = [operation.name for operation in self.operations]
        return [at + 1 for at, name in enumerate(names) if name != "write" or names[at + 1 : at + 2] != ["write"]]

    def leave(self, cut: int, kept: Callable[[Operation], bytes | bool | None]) -> None:
        """Make the root what a cut after `cut` operations leaves; `kept` says what becomes of what is not certain.

        True keeps it, False or None drops it, bytes are kept in the place of its data.
        """
        disk = Disk(dict(self.start.nodes), {number: dict(names) for number, names in self.start.names.items()})
        for operation in self.operations[:cut]:
            if operation.certain_from is not None and operation.certain_from <= cut:
                operation.apply(disk, operation.data)
                continue
            what = kept(operation)
            if isinstance(what, bytes):
                operation.apply(disk, what)
            elif what:
                operation.apply(disk, operation.data)
        for entry in self.root.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        for path, node in _walk(disk, 0, self.root):
            _make(path, node)


def _walk(disk: Disk, folder: int, path: Path) -> Iterator[tuple[Path, Node]]:
    for name, number in disk.names[folder].items():
        yield path / name, disk.nodes[number]
        if number in disk.names:
            yield from _walk(disk, number, path / name)


def _make(path: Path, node: Node) -> None:
    if path.name.endswith("-shm"):
        return  # SQLite's shared memory is never on a disk
    if node.tree is not None:
        subprocess.run(["cp", "-a", node.tree, path], check=True)
    elif node.target is not None:
        path.symlink_to(node.target)
    elif node.data is not None:
        path.write_bytes(bytes(node.data))
        path.chmod(node.mode)
    else:
        path.mkdir()
        path.chmod(node.mode)


def nothing(operation: Operation) -> None:
    """Whatever is not certain is lost."""


def garbage(operation: Operation) -> bytes | bool:
    """Names are there, data is not what was written."""
    return bytes(0xAA for _ in operation.data) if operation.data is not None else True


def zeros(operation: Operation) -> bytes | bool:
    """As delayed allocation leaves it: the length, without the content."""
    return bytes(len(operation.data)) if operation.data is not None else True


def some(seed: int) -> Callable[[Operation], bytes | bool]:
    """Each by itself is there, missing or garbage."""
    dice = random.Random(seed)  # noqa: S311 - the same in every run of the tests

    def choose(operation: Operation) -> bytes | bool:
        chosen = dice.randrange(3)
        return garbage(operation) if chosen == 2 else bool(chosen)

    return choose
