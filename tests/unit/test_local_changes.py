"""What differs from RECORD, in environments that uv made of tiny wheels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.tiny_wheels import tiny_venv, tiny_wheel, uv_pip

from crossgrade.inspect.local_changes import LARGE_BYTES, local_changes

LARGE = b"\0" * (LARGE_BYTES + 1)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    one = {"pack/__init__.py": b"", "pack/a.py": b"A = 1\n", "pack/sub/b.cu": b"// b\n", "pack/big.so": LARGE,
           "pack/data.bin": b"\0data", "both/x.py": b"one\n", "single.py": b"S = 1\n"}  # fmt: skip
    wheels = [tiny_wheel(tmp_path, "one", "1.0", one), tiny_wheel(tmp_path, "two", "2.0", {"both/x.py": b"two\n"})]
    return tiny_venv(tmp_path / "venv", *wheels)


def site_of(venv: Path) -> Path:
    return next(venv.glob("lib/python3*/site-packages"))


def told(venv: Path) -> list[tuple[str, str, str]]:
    found = local_changes(venv)
    assert found.unknown == {}
    return [(change.dist, change.path, change.kind) for change in found.changes]


def test_what_an_installer_leaves_is_no_change(venv: Path) -> None:
    site = site_of(venv)
    (site / "pack" / "__pycache__").mkdir()
    (site / "pack" / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"compiled")
    (site / "pack" / "a.log").write_text("written by the program\n")
    assert told(venv) == []
    uv_pip(
        venv, "install", "--reinstall", "--compile-bytecode", "--no-deps", str(venv.parent / "one-1.0-py3-none-any.whl")
    )
    assert told(venv) == []


def test_changed_deleted_and_added_files_are_told_with_their_dist(venv: Path) -> None:
    site = site_of(venv)
    (site / "pack" / "a.py").write_bytes(b"A = 2\n")  # of the same size
    (site / "single.py").write_bytes(b"S = 11\n")
    (site / "pack" / "sub" / "b.cu").unlink()
    (site / "pack" / "sub" / "new.py").write_bytes(b"N = 1\n")
    (site / "pack" / "data.bin").write_bytes(b"\0other")
    assert told(venv) == [
        ("one", "pack/a.py", "changed"),
        ("one", "pack/data.bin", "changed"),
        ("one", "pack/sub/b.cu", "deleted"),
        ("one", "pack/sub/new.py", "added"),
        ("one", "single.py", "changed"),
    ]
    contents = {change.path: (change.content, change.is_text) for change in local_changes(venv).changes}
    assert contents["pack/a.py"] == (b"A = 2\n", True)
    assert contents["pack/data.bin"] == (None, False)
    assert contents["pack/sub/b.cu"] == (None, True)


def test_a_file_that_two_dists_wrote_says_nothing_about_people(venv: Path) -> None:
    (site_of(venv) / "both" / "x.py").write_bytes(b"three\n")
    assert told(venv) == []


def test_a_large_file_is_read_when_it_is_younger_than_its_record(venv: Path) -> None:
    big = site_of(venv) / "pack" / "big.so"
    record = next(site_of(venv).glob("one-*.dist-info")) / "RECORD"
    big.unlink()  # it may be one file with uv's cache
    big.write_bytes(b"\1" * len(LARGE))
    later = record.stat().st_mtime_ns + 10_000_000_000
    os.utime(big, ns=(later, later))
    assert told(venv) == [("one", "pack/big.so", "changed")]
    big.write_bytes(LARGE)
    os.utime(big, ns=(later, later))
    assert told(venv) == []


def test_a_package_that_is_a_link_to_a_checkout_is_compared_through_it(venv: Path, tmp_path: Path) -> None:
    site = site_of(venv)
    (site / "pack").rename(tmp_path / "checkout")
    (site / "pack").symlink_to(tmp_path / "checkout")
    (tmp_path / "checkout" / "loop").symlink_to(tmp_path / "checkout")
    (tmp_path / "checkout" / "a.py").unlink()
    (tmp_path / "checkout" / "a.py").write_bytes(b"A = 3\n")
    assert ("one", "pack/a.py", "changed") in told(venv)


def test_what_cannot_be_compared_is_said(venv: Path) -> None:
    folder = next(site_of(venv).glob("one-*.dist-info"))
    (folder / "RECORD").unlink()
    (site_of(venv) / "pack" / "a.py").write_bytes(b"A = 2\n")
    found = local_changes(venv)
    assert found.unknown == {"one 1.0": "its RECORD is missing"}
    assert found.changes == ()
