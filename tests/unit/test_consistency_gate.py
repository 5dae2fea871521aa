"""The consistency gate's verdicts, on what the readers find in venv folders."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.support.tiny_wheels import recorded_hash, tiny_venv, tiny_wheel

from crossgrade.gates.consistency import judge_consistency
from crossgrade.gates.verdict import Verdict
from crossgrade.inspect.consistency import Consistency, read_consistency
from crossgrade.inspect.dists import site_packages

SO = "nvidia/nccl/lib/libnccl.so.2"


def judge(venv: Path, *ignore: str) -> Verdict:
    return judge_consistency(read_consistency(venv), ignore=ignore)


def bare_venv(place: Path, **dists: str) -> Path:
    """A venv folder with one dist, of version 1, for each RECORD."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    site = place / "lib" / f"python{version}" / "site-packages"
    (place / "bin").mkdir(parents=True)
    (place / "bin/python").symlink_to(sys.executable)
    for name, record in dists.items():
        folder = site / f"{name}-1.dist-info"
        folder.mkdir(parents=True)
        (folder / "RECORD").write_text(record)
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: 1\n\n")
    return place


def lines(owner: str, *paths: str) -> str:
    return "".join(f"{path},{recorded_hash(owner.encode())},\n" for path in paths)


def put(venv: Path, **files: str) -> None:
    for name, content in files.items():
        (site_packages(venv) / name).write_text(content)


def test_two_dists_that_overwrite_each_other(tmp_path: Path) -> None:
    wheels = [
        tiny_wheel(tmp_path, f"nvidia-nccl-{cuda}", "2.28.3", {SO: cuda.encode(), "nvidia/__init__.py": b""})
        for cuda in ("cu12", "cu13")
    ]
    verdict = judge(tiny_venv(tmp_path / "venv", *wheels))
    assert not verdict.passed
    assert verdict.reason == (
        "nvidia-nccl-cu12 2.28.3 and nvidia-nccl-cu13 2.28.3 both write 1 file (nvidia/nccl/lib/libnccl.so.2) with "
        "different bytes; the bytes there are those of nvidia-nccl-cu13 2.28.3. Uninstall one of them, then install "
        "the one that stays again (uninstalling takes its files too)"
    )
    (failure,), (note,) = verdict.of_level("failure"), verdict.of_level("note")
    assert failure.evidence == {
        "dists": ["nvidia-nccl-cu12 2.28.3", "nvidia-nccl-cu13 2.28.3"],
        "files": [{"path": SO, "bytes_of": ["nvidia-nccl-cu13 2.28.3"]}],
    }
    assert note.message.startswith("both write 1 file (nvidia/__init__.py) with the same bytes; ")
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


def test_files_of_which_each_dist_has_some(tmp_path: Path) -> None:
    paths = ("f1", "f2", "f3", "f4", "f5")
    venv = bare_venv(tmp_path, a=lines("a", *paths), b=lines("b", *paths))
    put(venv, f1="a", f2="b", f3="a", f4="patched")
    (failure,) = judge(venv).findings
    assert failure.message.startswith(
        "both write 5 files (f1, f2, f3 and 2 more) with different bytes; the bytes there are those of "
        "a 1 (2 files), b 1 (1 file), nobody (1 file), missing: 1. "
    )


@pytest.mark.parametrize(
    ("files", "words"), [({"x.py": "else"}, "those of nobody. Uninstall"), ({}, "now missing. Uninstall")]
)
def test_bytes_of_nobody(tmp_path: Path, files: dict[str, str], words: str) -> None:
    venv = bare_venv(tmp_path, a=lines("a", "x.py"), b=lines("b", "x.py"))
    put(venv, **files)
    assert words in judge(venv).reason


def test_three_dists(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path, a=lines("a", "x.py"), b=lines("b", "x.py"), c=lines("a", "x.py"))
    put(venv, **{"x.py": "a"})
    reason = judge(venv).reason
    assert reason.startswith("a 1, b 1, c 1 all write 1 file (x.py) with different bytes; ")
    assert "those of a 1 and c 1. Uninstall all of them but one, " in reason


def test_a_file_without_a_hash_is_a_warning(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path, a=lines("a", "x"), b="x,,\n")
    put(venv, x="a")
    verdict = judge(venv)
    assert verdict.passed
    assert verdict.reason.endswith("; 1 warning")
    (warning,) = verdict.of_level("warning")
    assert warning.message == "both list 1 file (x), and not each of them by a hash that can be compared"


def test_nothing_found(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path, a=lines("a", "x"), b=lines("b", "y"))
    put(venv, x="a", y="b")
    verdict = judge(venv)
    assert (verdict.outcome, verdict.findings) == ("passed", ())
    assert verdict.reason == "2 dists: 0 Python or native files of two dists with different bytes, 0 unmet requirements"
    assert (
        judge_consistency(Consistency()).reason
        == "0 Python or native files of two dists with different bytes, 0 unmet requirements"
    )


def test_a_path_that_is_not_utf_8_can_be_reported(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path, a="", b="")
    for name in ("a", "b"):
        record = b"x\xff.py," + recorded_hash(name.encode()).encode() + b",1\n"
        (site_packages(venv) / f"{name}-1.dist-info/RECORD").write_bytes(record)
    assert "x\\udcff" in judge(venv).reason.encode().decode()


@pytest.mark.parametrize("path", ["LICENSE", "tests/__init__.py", "docs/conf.py", "share/x.json", "build_backend.py"])
def test_what_is_no_code_of_theirs_is_a_warning(tmp_path: Path, path: str) -> None:
    verdict = judge(bare_venv(tmp_path, a=lines("a", path), b=lines("b", path)))
    assert verdict.passed
    assert [finding.level for finding in verdict.findings] == ["warning"]


def test_shared_files_can_be_ignored_by_either_dist(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path, one=lines("a", "x.py"), other=lines("b", "x.py"))
    assert judge(venv).outcome == "failed"
    for pattern in ("one", "OTH*"):
        verdict = judge(venv, pattern)
        assert verdict.passed
        assert [finding.level for finding in verdict.findings] == ["note"]
        assert verdict.findings[0].message.endswith(f"(ignored by {pattern!r})")


# Requirements


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    venv = bare_venv(tmp_path, My_Tool="", numpy="")
    needs = "Requires-Dist: numpy<1\nRequires-Dist: absent\nRequires-Dist: numpy>=\n"
    (site_packages(venv) / "My_Tool-1.dist-info/METADATA").write_text(f"Name: My_Tool\n{needs}\n")
    (site_packages(venv) / "numpy-1.dist-info/METADATA").write_text("")
    return venv


def test_unmet_requirements(broken: Path) -> None:
    verdict = judge(broken)
    assert verdict.outcome == "failed"
    assert verdict.reason == "my-tool 1 needs numpy<1, and numpy 1 is installed (and 2 more failures)"
    assert [f"{finding.level}: {finding.subject} {finding.message}" for finding in verdict.findings][1:2] == [
        "failure: my-tool 1 needs absent, and absent is not installed"
    ]
    assert [finding.level for finding in verdict.findings] == ["failure", "failure", "warning", "failure"]
    assert verdict.findings[3].message == "has requirements that are not known: its METADATA is damaged (it is empty)"
    assert verdict.figures["unmet_requirements"] == 2


def test_ignored_dists(broken: Path) -> None:
    verdict = judge(broken, "My.Tool*")
    assert [finding.subject for finding in verdict.of_level("failure")] == ["numpy 1"]
    assert verdict.of_level("note")[0].message == "needs numpy<1, and numpy 1 is installed (ignored by 'My.Tool*')"
    verdict = judge(broken, "my-*", "num?y")
    assert verdict.passed
    assert verdict.reason.endswith(" 0 unmet requirements but for 4 that are ignored")


def test_a_requirement_that_cannot_be_judged_does_not_fail(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path, a="")
    (site_packages(venv) / "a-1.dist-info/METADATA").write_text("Name: a\nRequires-Dist: pytz>dev\n\n")
    verdict = judge(venv)
    assert verdict.passed
    assert verdict.reason.endswith("; 1 warning")
