"""`crossgrade patches` on real venvs and checkouts."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

from tests.support.tiny_wheels import tiny_venv, tiny_wheel


def patches(venv: Path, *options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "crossgrade", "patches", str(venv), "--root", str(venv.parent / "none"), *options]
    return subprocess.run(argv, capture_output=True, text=True)


def test_changes_are_shown_and_saved_as_patches_that_git_applies(tmp_path: Path) -> None:
    files = {"pack/a.py": b"A = 1\n", "pack/b.bin": b"\0b", "pack/c.py": b""}
    venv = tiny_venv(tmp_path / "venv", tiny_wheel(tmp_path, "cg-pack", "1.0", files))
    site = next(venv.glob("lib/python3*/site-packages"))
    assert "every file is as its RECORD says" in patches(venv).stdout

    (site / "pack/a.py").unlink()
    (site / "pack/a.py").write_bytes(b"A = 2\n")
    (site / "pack/new.py").write_bytes(b"N = 1\n")
    shown = patches(venv, "--diff")
    assert shown.returncode == 0, shown.stderr
    assert "cg-pack 1.0: 1 added, 1 changed" in shown.stdout
    assert "-A = 1\n+A = 2\n" in shown.stdout

    folder = tmp_path / "saved"
    assert patches(venv, "--save", str(folder)).returncode == 0
    saved = folder / "cg-pack-1.0.patch"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, saved)] == [0o700, 0o600]
    (tmp_path / "apply/pack").mkdir(parents=True)
    (tmp_path / "apply/pack/a.py").write_bytes(b"A = 1\n")
    subprocess.run(["git", "apply", str(saved)], cwd=tmp_path / "apply", check=True)
    assert (tmp_path / "apply/pack/a.py").read_bytes() == b"A = 2\n"
    assert (tmp_path / "apply/pack/new.py").read_bytes() == b"N = 1\n"

    (site / "pack/b.bin").unlink()
    (site / "pack/b.bin").write_bytes(b"\0other")
    (site / "pack/a.py").write_bytes(b"A = 3\n")
    again = patches(venv, "--save", str(folder))
    assert again.returncode == 1  # an earlier patch is not written over
    assert "is another patch" in again.stderr
    told = patches(venv, "--diff", "--json")
    assert told.returncode == 2
    (dist,) = json.loads(told.stdout)["dists"]
    assert dist["problems"] == {"pack/b.bin": "it is no source text"}


def git(place: Path, *words: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=n@localhost"]
    subprocess.run(["git", *identity, *words], cwd=place, check=True, capture_output=True)


def test_a_checkout_with_commits_and_changes_of_its_own_is_saved(tmp_path: Path) -> None:
    """As `pip install -e` leaves it: direct_url.json names the checkout."""
    seed, checkout = tmp_path / "seed", tmp_path / "checkout"
    (seed / "pack").mkdir(parents=True)
    (seed / "pack/a.py").write_text("A = 1\n")
    (seed / "pack/b.py").write_text("B = 1\n")
    git(seed, "init", "-q")
    git(seed, "add", "-A")
    git(seed, "commit", "-qm", "first")
    git(tmp_path, "clone", "-q", str(seed), str(checkout))
    venv = tiny_venv(tmp_path / "venv", tiny_wheel(tmp_path, "cg-pack", "1.0", {}))
    info = next(venv.glob("lib/python3*/site-packages/cg_pack-1.0.dist-info"))
    (info / "direct_url.json").write_text(json.dumps({"url": checkout.as_uri(), "dir_info": {"editable": True}}))

    (checkout / "pack/a.py").write_text("A = 2\n")
    git(checkout, "commit", "-qam", "ours")
    (checkout / "pack/b.py").write_text("B = 2\n")
    told = patches(venv, "--save", str(tmp_path / "saved"))
    assert told.returncode == 0, told.stderr
    assert "changed: 1" in told.stdout
    assert "commits of its own: 1" in told.stdout
    (saved,) = (tmp_path / "saved").iterdir()
    subprocess.run(["git", "apply", str(saved)], cwd=seed, check=True)
    assert (seed / "pack/a.py").read_text() == "A = 2\n"
    assert (seed / "pack/b.py").read_text() == "B = 2\n"
