"""Manifests: nothing that counts escapes them, nothing that does not count is a change, and no torn one is believed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from blake3 import blake3

from crossgrade.errors import StoreError
from crossgrade.store import manifest as manifest_module
from crossgrade.store.hashing import Found, hash_files
from crossgrade.store.manifest import (
    Manifest,
    build_manifest,
    compare,
    hash_file,
    quick_drift,
    read_manifest,
    write_manifest,
)
from crossgrade.store.scanning import count_files

SETTLE_SECONDS = 0.05  # longer than a tick of the kernel's clock: then files can be trusted by their times
NOT_UTF8 = os.fsdecode(b"lib/caf\xe9 \xff.py")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


def tree(root: Path) -> Path:
    """A small one with everything that a tree may hold."""
    (root / "lib").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "lib" / "a.py").write_text("a = 1\n")
    (root / "lib" / "b.so").write_bytes(bytes(range(256)) * 10)
    (root / "lib" / "big.so").write_bytes(bytes(range(256)) * 20_000)
    (root / "lib" / "nothing").write_bytes(b"")
    os.link(root / "lib" / "a.py", root / "lib" / "same.py")
    (root / "link").symlink_to("lib/a.py")
    (root / "lib" / "dangling").symlink_to("nowhere\nat all")
    os.mkfifo(root / "fifo")
    (root / "pyvenv.cfg").write_text("home = /usr/bin\n")
    for name in ("two\nlines", "[1,2]", '"quoted", \\n', "umlaut-ä-😀", "sep\u2028arator", NOT_UTF8):
        (root / name).write_text(ascii(name))
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The tree, left alone for long enough that its times prove something."""
    root = tree(tmp_path / "tree")
    time.sleep(SETTLE_SECONDS)
    return root


# ---- what a manifest holds


def test_what_is_recorded_is_what_the_kernel_says(root: Path) -> None:
    manifest = build_manifest(root)
    below = {str(path.relative_to(root)): path for path in root.rglob("*")}
    assert manifest.entries.keys() == below.keys()
    for path, entry in manifest.entries.items():
        status = below[path].lstat()
        assert (entry.uid, entry.gid, entry.device, entry.inode, entry.mtime_ns, entry.ctime_ns) == (
            *(status.st_uid, status.st_gid, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns),
        )
        assert entry.mode == status.st_mode & 0o7777
        if entry.type == "file":
            assert entry.digest == blake3(below[path].read_bytes()).hexdigest() == hash_file(str(below[path]))
            assert entry.size == status.st_size
        else:
            assert (entry.digest, entry.size) == ("", 0)
    assert manifest.entries["link"].target == "lib/a.py"
    assert manifest.entries["fifo"].type == "other"
    assert manifest.entries["empty"].type == "directory"
    assert manifest.file_count == 12


def test_digests_are_those_of_the_program_b3sum(root: Path) -> None:
    """The known answer for the empty input, from the test vectors of BLAKE3."""
    assert hash_file(str(root / "lib" / "nothing")) == (
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    )


def test_a_manifest_survives_writing_and_reading(tmp_path: Path, root: Path) -> None:
    manifest = build_manifest(root)
    path = tmp_path / "manifest"
    write_manifest(path, manifest)
    assert read_manifest(path) == manifest
    assert NOT_UTF8 in read_manifest(path).entries
    assert "two\nlines" in read_manifest(path).entries
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(path.read_bytes().splitlines()) == 1 + 1 + len(manifest.entries) + 1, "one entry a line"


def test_a_manifest_of_an_empty_tree(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    manifest = build_manifest(tmp_path / "empty")
    write_manifest(tmp_path / "manifest", manifest)
    assert read_manifest(tmp_path / "manifest") == manifest
    assert manifest.entries == {}


# ---- torn and edited


@pytest.fixture
def written(tmp_path: Path, root: Path) -> tuple[Path, bytes, Manifest]:
    manifest = build_manifest(root)
    path = tmp_path / "manifest"
    write_manifest(path, manifest)
    return path, path.read_bytes(), manifest


def test_a_torn_manifest_is_recognised(written: tuple[Path, bytes, Manifest]) -> None:
    path, whole, _ = written
    for length in [*range(0, len(whole), 97), *range(len(whole) - 5, len(whole))]:
        path.write_bytes(whole[:length])
        with pytest.raises(StoreError, match="damaged"):
            read_manifest(path)
        path.write_bytes(whole[:length] + bytes(len(whole) - length))  # blocks that were never written
        with pytest.raises(StoreError, match="damaged"):
            read_manifest(path)


def test_no_flipped_bit_is_believed(written: tuple[Path, bytes, Manifest]) -> None:
    path, whole, manifest = written
    refused = 0
    for at in [*range(whole.index(b"\n") + 2), *range(0, len(whole), 31)]:
        for bit in (0x01, 0x20, 0x80):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            try:
                assert read_manifest(path) == manifest
            except StoreError:
                refused += 1
    assert refused > 500


@pytest.mark.parametrize(
    "text", ["", "\n", "null\n[]", "[]\n[]", "5", '{"schema": 2}\n[]', "{}\n[]", "[" * 100_000, '"a"\n', "\x00\xff"]
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest").write_text(text)
    with pytest.raises(StoreError, match="damaged"):
        read_manifest(tmp_path / "manifest")


def test_other_schemas_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "manifest"
    path.write_text('{"schema": 1, "digest": "00", "entries": 1}\n["a", "file", 420, 1, 2, 3, 4, "00", ""]\n')
    with pytest.raises(StoreError, match="older crossgrade") as caught:
        read_manifest(path)
    assert "upgrade" in caught.value.remedy
    path.write_text('{"schema": 3, "digest": "00", "entries": 0, "checksum": ""}\n[]\n')
    with pytest.raises(StoreError, match="schema 3"):
        read_manifest(path)
    with pytest.raises(StoreError, match="missing"):
        read_manifest(tmp_path / "none")


# ---- what is a change


def test_comparison_names_each_kind_of_difference(root: Path) -> None:
    manifest = build_manifest(root)
    assert compare(manifest, root, full=True).identical
    assert quick_drift(manifest, root) == ()
    (root / "lib" / "b.so").write_text("a = 2\n")
    (root / "link").unlink()
    (root / "new").write_text("")
    (root / "lib" / "__pycache__").mkdir()
    (root / "lib" / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"x")
    (root / NOT_UTF8).write_text("other")
    for full in (False, True):
        found = compare(manifest, root, full=full)
        assert found.changed == ("lib/b.so", NOT_UTF8)
        assert found.missing == ("link",)
        assert found.extra == ("new",)
        assert found.bytecode == ("lib/__pycache__", "lib/__pycache__/a.cpython-311.pyc")
    assert quick_drift(manifest, root) == ("lib/b.so", NOT_UTF8, "link")


def test_an_unchanged_tree_is_not_read(root: Path) -> None:
    manifest = build_manifest(root)
    assert compare(manifest, root, full=False).bytes_read == 0
    assert compare(manifest, root, full=True).bytes_read == manifest.total_bytes
    assert compare(manifest, root, full=False).files == manifest.file_count


def test_a_touched_file_is_read_and_is_no_change(root: Path) -> None:
    manifest = build_manifest(root)
    os.utime(root / "lib" / "b.so", (1, 1))
    found = compare(manifest, root, full=False)
    assert found.identical
    assert found.bytes_read == 2560
    assert quick_drift(manifest, root) == ("lib/b.so",)
    assert build_manifest(root).digest == manifest.digest


def test_setting_the_time_back_hides_nothing(root: Path) -> None:
    manifest = build_manifest(root)
    target = root / "lib" / "b.so"
    before = target.stat()
    target.write_bytes(bytes(reversed(range(256))) * 10)
    os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = target.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert compare(manifest, root, full=False).changed == ("lib/b.so",)
    assert quick_drift(manifest, root) == ("lib/b.so",)


def test_a_file_put_in_anothers_place_is_found(root: Path) -> None:
    manifest = build_manifest(root)
    other = root / "lib" / "other"
    other.write_bytes(bytes(reversed(range(256))) * 10)
    shutil.copystat(root / "lib" / "b.so", other)
    other.rename(root / "lib" / "b.so")
    assert compare(manifest, root, full=False).changed == ("lib/b.so",)


@pytest.mark.parametrize("name", ["lib/a.py", "empty", "fifo"])
def test_a_changed_mode_is_a_change(root: Path, name: str) -> None:
    manifest = build_manifest(root)
    (root / name).chmod(0o500)
    expected = (name, "lib/same.py") if name == "lib/a.py" else (name,)  # the two are one file
    assert compare(manifest, root, full=False).changed == expected
    assert quick_drift(manifest, root) == expected
    assert build_manifest(root).digest != manifest.digest


@as_root
@pytest.mark.parametrize("name", ["lib/b.so", "empty", "link"])
@pytest.mark.parametrize(("uid", "gid"), [(12345, -1), (-1, 12345)])
def test_a_changed_owner_is_a_change(root: Path, name: str, uid: int, gid: int) -> None:
    manifest = build_manifest(root)
    os.chown(root / name, uid, gid, follow_symlinks=False)
    for full in (False, True):
        assert compare(manifest, root, full=full).changed == (name,)
    assert quick_drift(manifest, root) == (name,)
    assert build_manifest(root).digest != manifest.digest


@pytest.mark.parametrize("name", ["lib/b.so", "link", "empty", "fifo"])
def test_another_type_in_its_place_is_a_change(root: Path, name: str) -> None:
    manifest = build_manifest(root)
    place = root / name
    place.rmdir() if place.is_dir() else place.unlink()
    if name == "fifo":
        place.write_text("")
    else:
        os.mkfifo(place)
    assert compare(manifest, root, full=False).changed == (name,)
    assert quick_drift(manifest, root) == (name,)


def test_a_link_that_points_elsewhere_is_a_change(root: Path) -> None:
    manifest = build_manifest(root)
    (root / "link").unlink()
    (root / "link").symlink_to("lib/b.so")
    assert compare(manifest, root, full=False).changed == ("link",)


def test_a_copied_tree_is_identical_in_content(tmp_path: Path, root: Path) -> None:
    manifest = build_manifest(root)
    subprocess.run(["cp", "-a", str(root), str(tmp_path / "copy")], check=True)
    found = compare(manifest, tmp_path / "copy", full=False)
    assert found.identical
    assert found.bytes_read == manifest.total_bytes, "a copy has other inodes: nothing but its bytes proves it"
    assert build_manifest(tmp_path / "copy").digest == manifest.digest


def test_what_is_known_is_not_read_again(root: Path) -> None:
    manifest = build_manifest(root)
    lied = {path: entry._replace(digest="00" * 32) if entry.digest else entry for path, entry in
            manifest.entries.items()}  # fmt: skip
    again = build_manifest(root, known=Manifest(lied, "")).entries
    assert {entry.digest for entry in again.values()} == {"", "00" * 32}


def test_files_are_counted_as_in_the_manifest(root: Path) -> None:
    manifest = build_manifest(root)
    assert count_files(root) == (manifest.file_count, manifest.total_bytes)


# ---- racy files


def test_a_file_changed_just_before_it_was_read_is_never_trusted(root: Path) -> None:
    fresh = root / "fresh"
    fresh.write_bytes(b"1" * 100)
    manifest = build_manifest(root)
    assert manifest.entries["fresh"].ctime_ns == -1
    assert manifest.entries["pyvenv.cfg"].ctime_ns > 0
    time.sleep(SETTLE_SECONDS)
    found = compare(manifest, root, full=False)
    assert (found.identical, found.bytes_read) == (True, 100)
    assert quick_drift(manifest, root) == ()


def test_a_change_in_the_same_tick_is_found(root: Path) -> None:
    """Written, read, and written again at once: same size, same mtime, and on many kernels the same ctime."""
    fresh = root / "fresh"
    for _ in range(100):
        fresh.write_bytes(b"1" * 100)
        before = fresh.stat()
        manifest = build_manifest(root)
        with fresh.open("r+b") as stream:
            stream.write(b"2")
        os.utime(fresh, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert compare(manifest, root, full=False).changed == ("fresh",)
        assert quick_drift(manifest, root) == ("fresh",)


def test_whole_seconds_are_taken_for_a_coarse_clock() -> None:
    second = 1_000_000_000
    read = 100 * second
    assert not manifest_module._is_racy(read - 1_500_000_001, read)
    assert manifest_module._is_racy(read - second, read), "ext4 with small inodes keeps whole seconds"
    assert not manifest_module._is_racy(read - 3 * second, read)
    assert manifest_module._is_racy(read - 19_000_001, read)
    assert manifest_module._is_racy(read + 5, read), "the clock was set back"


# ---- what goes wrong while a tree is read


@contextmanager
def appending(path: Path) -> Iterator[None]:
    """Somebody writes into the file all the time."""
    ended = threading.Event()

    def write() -> None:
        with path.open("ab", buffering=0) as stream:
            while not ended.wait(0.001):
                stream.write(b"x")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def test_a_file_that_changes_while_it_is_read_is_named(root: Path) -> None:
    growing = root / "lib" / "growing.so"
    growing.write_bytes(b"")
    os.truncate(growing, 200_000_000)
    for read in (lambda: build_manifest(root), lambda: hash_file(str(growing))):
        with appending(growing), pytest.raises(StoreError, match=re.escape(f"{growing} changed")) as caught:
            read()
        assert "run again" in caught.value.remedy
    assert build_manifest(root).entries["lib/growing.so"].size == growing.stat().st_size


@pytest.mark.parametrize("now", ["vanished", "a FIFO", "a link", "a directory", "another"])
def test_a_file_that_is_no_longer_what_was_found(root: Path, now: str) -> None:
    place = root / "lib" / "b.so"
    status = place.lstat()
    place.unlink()
    if now == "a FIFO":
        os.mkfifo(place)  # opening it would wait for a writer
    elif now == "a link":
        place.symlink_to("a.py")
    elif now == "a directory":
        place.mkdir()
    elif now == "another":
        place.write_bytes(bytes(2560))
    with pytest.raises(StoreError, match=re.escape(str(place))):
        hash_files(str(root), [Found("lib/b.so", status.st_size, status.st_ctime_ns, status.st_ino)])


def test_a_tree_that_is_not_there_is_named(tmp_path: Path) -> None:
    for read in (lambda: build_manifest(tmp_path / "none"), lambda: hash_file(str(tmp_path / "none"))):
        with pytest.raises(StoreError, match="none vanished"):
            read()
    with pytest.raises(StoreError, match="not a regular file"):
        hash_file(str(tmp_path))


@pytest.mark.parametrize("name", ["lib/b.so", "lib"])
def test_what_may_not_be_read_is_named(root: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (root / name).chmod(0)
    monkeypatch.chdir(root)  # the folders above are private to root
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(StoreError, match=f"{name} cannot be read: Permission denied") as caught:
            build_manifest(Path())
    finally:
        os.seteuid(user)
        (root / name).chmod(0o755)
    assert "root" in caught.value.remedy


def test_largest_first_and_on_all_cores(root: Path) -> None:
    """Many files of all sizes: each gets its own digest, whichever thread came to it."""
    sizes = [*range(300), 65_535, 65_536, 65_537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000]
    for size in sizes:
        (root / f"f{size}").write_bytes(bytes([size % 251]) * size)
    entries = build_manifest(root).entries
    for size in sizes:
        assert entries[f"f{size}"].digest == blake3(bytes([size % 251]) * size).hexdigest()
