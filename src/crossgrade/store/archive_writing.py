"""Writing a generation to an archive, in one pass: each file is hashed as it is read, and must fit its manifest.

One thread reads and hashes, one compresses and writes; zstd adds threads of its own. So it keeps up with
`tar | zstd` although it does more, in memory that does not grow with the environment.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import queue
import stat
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from blake3 import blake3

from crossgrade import __version__
from crossgrade.errors import StoreError
from crossgrade.store.archive import (
    EXTRAS,
    MANIFEST,
    MANIFEST_BYTES,
    RECORD,
    TOOLKITS,
    VENV,
    Record,
    check_entries,
    part_of,
)
from crossgrade.store.atomic import sync_directory
from crossgrade.store.layout import Store, places_of
from crossgrade.store.manifest import (
    Entry,
    Manifest,
    build_manifest,
    is_bytecode,
    manifest_bytes,
    recorded_manifest,
    type_of,
)
from crossgrade.store.scanning import scan

DEFAULT_LEVEL = 3
_PIECE = 1 << 20
_QUEUED_PIECES = 16
_BLOCK = 512


def write_archive(
    store: Store,
    number: int,
    target: Path,
    *,
    level: int = DEFAULT_LEVEL,
    progress: Callable[[str], None] = lambda _: None,
) -> int:
    """Write generation `number` to the file `target`, whole or not at all. Returns the size of the archive in bytes.

    Raises StoreError when the generation is not complete or its files are not what its manifest says, when
    something in it cannot be archived, and OSError (a full disk).
    """
    from crossgrade.store.zstandard import zstd  # only archives need it

    generation, manifest = store.generation(number), recorded_manifest(store, number)
    check_entries(manifest, f"generation {number}")
    _check_nothing_more(store.venv(number), manifest)
    digests = [str(digest) for digest in generation.contents.get("toolkits", ())]
    toolkits = [digest for digest in digests if store.toolkit(digest).is_dir()]
    record = Record(
        *(generation, manifest.digest, tuple(toolkits), str(store.root), places_of(store, generation)),
        *(platform.node(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), __version__),
    )
    parameters: dict[int, int] = {
        zstd.CompressionParameter.compression_level: level,
        zstd.CompressionParameter.nb_workers: os.cpu_count() or 1,
        zstd.CompressionParameter.checksum_flag: 1,
    }
    with _new_file(target) as file:
        compressor = zstd.ZstdCompressor(options=parameters)
        for piece in _ahead(_pieces(store, record, manifest, progress)):
            file.write(compressor.compress(piece))
        file.write(compressor.flush())
    sync_directory(target.parent)
    return target.stat().st_size


@contextmanager
def _new_file(target: Path) -> Iterator[IO[bytes]]:
    """A file that becomes `target` when it is whole, durable and its block ends well. Raises StoreError.

    Until then it has another name, and is locked: two exports to one place must not write into each other's. What a
    kill left there is written anew, what somebody else put there never.
    """
    temporary = part_of(target)
    while True:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        file = os.fdopen(descriptor, "wb")
        try:
            _take(descriptor, temporary)
            if not (temporary.exists() and os.path.samestat(temporary.lstat(), os.fstat(descriptor))):
                file.close()  # whoever had the lock has renamed or removed it meanwhile
                continue
        except BaseException:
            file.close()
            raise
        break
    with file:
        try:
            if target.exists():
                raise StoreError(
                    f"{target} is there already: it is not overwritten", remedy="Give another name, or move it."
                )
            file.truncate(0)
            yield file
            file.flush()
            os.fsync(descriptor)
            temporary.rename(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _take(descriptor: int, path: Path) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
        raise StoreError(f"{path} is not a file of ours: it is not written to", remedy=f"rm {path}")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(f"another export is writing {path}", remedy="Wait for its end.") from None


def _check_nothing_more(venv: Path, manifest: Manifest) -> None:
    """Refuse an environment that holds what its manifest does not list: it would be missing after a restore."""
    known = manifest.entries
    for path, status, _ in scan(venv):
        if path not in known and not is_bytecode(path, type_of(status.st_mode)):
            raise StoreError(
                f"{venv / path} came after the manifest was made: the environment is not archived without it",
                remedy="`crossgrade verify` lists what was added. Remove it, or upgrade with it in the requirements.",
            )


# ---- the stream of bytes


def _pieces(store: Store, record: Record, manifest: Manifest, progress: Callable[[str], None]) -> Iterator[bytes]:
    number = record.generation.number
    listed = manifest_bytes(manifest)
    if len(listed) > MANIFEST_BYTES:
        raise StoreError(
            f"the manifest of generation {number} has {len(listed):,} bytes: more than an archive may hold, "
            f"{MANIFEST_BYTES:,}"
        )
    yield from _text(RECORD, json.dumps(record.to_json(), indent=1, sort_keys=True).encode())
    yield from _text(MANIFEST, listed)
    for path in _extras(store.folder(number)):
        yield from _text(f"{EXTRAS}{path.relative_to(store.folder(number))}", path.read_bytes())
    progress(f"archiving {len(manifest.entries):,} entries, {manifest.total_bytes / 1e6:,.0f} MB")
    yield from _tree(store.venv(number), VENV, manifest)
    for digest in record.toolkits:
        progress(f"archiving toolkit {digest[:12]}")
        toolkit = build_manifest(store.toolkit(digest))
        check_entries(toolkit, f"toolkit {digest}")
        yield from _text(f"{TOOLKITS}/{digest}.jsonl", manifest_bytes(toolkit))
        yield from _tree(store.toolkit(digest), f"{TOOLKITS}/{digest}", toolkit)
    yield bytes(2 * _BLOCK)


def _extras(folder: Path) -> list[Path]:
    verdicts = folder / "verdicts"
    found = [folder / "lock.txt", *(sorted(verdicts.glob("*.json")) if verdicts.is_dir() else [])]
    return [path for path in found if path.is_file()]


def _header(name: str, entry: Entry | None, size: int, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    if entry is None:
        info.mode, info.mtime = 0o600, int(time.time())
    else:
        info.mode, info.uid, info.gid, info.mtime = entry.mode, entry.uid, entry.gid, entry.mtime_ns // 1_000_000_000
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _text(name: str, data: bytes) -> Iterator[bytes]:
    yield _header(name, None, len(data)) + data + bytes(-len(data) % _BLOCK)


def _tree(root: Path, prefix: str, manifest: Manifest) -> Iterator[bytes]:
    """Headers and contents of all entries. Hard links among them stay links of the first."""
    base, first = os.fspath(root), dict[tuple[int, int], tuple[str, Entry]]()
    status = root.stat()
    mode = stat.S_IMODE(status.st_mode)
    top = Entry("", "directory", mode, status.st_uid, status.st_gid, 0, status.st_mtime_ns, 0, 0, 0)
    yield _header(f"{prefix}/", top, 0, tarfile.DIRTYPE)
    for path in sorted(manifest.entries):
        entry, name = manifest.entries[path], f"{prefix}/{path}"
        if entry.type == "directory":
            yield _header(name, entry, 0, tarfile.DIRTYPE)
        elif entry.type == "link":
            yield _header(name, entry, 0, tarfile.SYMTYPE, entry.target)
        else:
            yield from _file(f"{base}/{path}", name, entry, first)


def _file(path: str, name: str, entry: Entry, first: dict[tuple[int, int], tuple[str, Entry]]) -> Iterator[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise StoreError(f"{path} is no longer a file: it is not archived")
        if status.st_nlink > 1:
            known, its_entry = first.setdefault((status.st_dev, status.st_ino), (name, entry))
            if known != name:
                if not entry.same_content(its_entry):
                    raise _not_as_recorded(path)
                yield _header(name, entry, 0, tarfile.LNKTYPE, known)
                return
        hasher, left = blake3(), entry.size
        piece = _header(name, entry, entry.size)
        while data := os.read(descriptor, _PIECE):
            hasher.update(data)
            left -= len(data)
            if left < 0:
                break
            piece += data
            if len(piece) >= _PIECE:
                yield piece
                piece = b""
        if left != 0 or hasher.hexdigest() != entry.digest:
            raise _not_as_recorded(path)
        yield piece + bytes(-entry.size % _BLOCK)
    finally:
        os.close(descriptor)


def _not_as_recorded(path: str) -> StoreError:
    return StoreError(
        f"{path} is not what the manifest says: it is not archived",
        remedy="`crossgrade verify` lists what was changed.",
    )


def _ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces, gathered to larger ones and made by a thread of their own a little ahead of who takes them."""
    waiting: queue.Queue[bytes | BaseException | None] = queue.Queue(_QUEUED_PIECES)
    stopped = threading.Event()

    def hand_over(item: bytes | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                waiting.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def make() -> None:
        gathered: list[bytes] = []
        size = 0
        try:
            for piece in pieces:
                gathered.append(piece)
                size += len(piece)
                if size >= _PIECE:
                    if not hand_over(b"".join(gathered)):
                        return
                    gathered, size = [], 0
            hand_over(b"".join(gathered))
            hand_over(None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the pieces are taken
            hand_over(error)

    thread = threading.Thread(target=make, name="archive reader", daemon=True)
    thread.start()
    try:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()
