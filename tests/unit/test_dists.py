"""What is installed in real virtual environments, without starting their Python."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.toolkits import uv_program

from crossgrade.inspect.dists import (
    InstalledDist,
    UnreadableEnvironmentError,
    direct_url,
    installed_dists,
    installer,
    normalize_name,
    record_entries,
    site_packages,
)

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "Rehearsed_Tool"
version = "1.2.0+cu130"

[tool.hatch.build.targets.wheel]
packages = ["rehearsed_tool"]
"""


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real environment: pip's own, plus one dist built from a directory and used in place."""
    place = tmp_path_factory.mktemp("dists")
    subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
    project = place / "a project"
    (project / "rehearsed_tool").mkdir(parents=True)
    (project / "rehearsed_tool/__init__.py").touch()
    (project / "pyproject.toml").write_text(PROJECT)
    command: list[str | Path] = [
        uv_program(),
        "pip",
        "install",
        "--quiet",
        "--python",
        place / "venv",
        "--editable",
        project,
    ]
    subprocess.run(command, check=True)
    return place / "venv"


def by_name(venv: Path) -> dict[str, InstalledDist]:
    return {dist.name: dist for dist in installed_dists(venv)}


def test_dists_are_those_that_pip_lists(venv: Path) -> None:
    listing = subprocess.check_output([venv / "bin/python", "-m", "pip", "list", "--format=json"], text=True)
    expected = {normalize_name(dist["name"]): dist["version"] for dist in json.loads(listing)}
    assert {dist.name: dist.version for dist in installed_dists(venv)} == expected
    assert "rehearsed-tool" in expected


def test_site_packages_is_pythons_own(venv: Path) -> None:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    answer = subprocess.check_output([venv / "bin/python", "-c", code], text=True).strip()
    assert site_packages(venv) == Path(answer)


def test_an_editable_dist(venv: Path) -> None:
    dist = by_name(venv)["rehearsed-tool"]
    origin = direct_url(dist)
    assert origin is not None
    assert origin.editable
    assert origin.directory == venv.parent / "a project"
    assert (str(dist), installer(dist)) == ("rehearsed-tool 1.2.0+cu130", "uv")


def test_a_dist_from_an_index_has_no_url(venv: Path) -> None:
    pip = by_name(venv)["pip"]
    assert direct_url(pip) is None
    assert installer(pip) == "pip"


def test_record_lists_the_files_as_they_are(venv: Path) -> None:
    pip = by_name(venv)["pip"]
    hashed = [entry for entry in record_entries(pip) if entry.algorithm]
    assert len(hashed) > 100
    for entry in hashed:
        content = (site_packages(venv) / entry.path).read_bytes()
        assert entry.size == len(content)
        assert entry.hex_digest == hashlib.new(entry.algorithm, content).hexdigest()
    unhashed = [entry for entry in record_entries(pip) if not entry.algorithm]
    assert {Path(entry.path).name for entry in unhashed} >= {"RECORD"}
    assert all(entry.size is None and entry.hex_digest == "" for entry in unhashed)


# Environments that people have


def bare_venv(place: Path, *pythons: str) -> Path:
    for python in pythons or ("python3.11",):
        (place / "lib" / python / "site-packages").mkdir(parents=True)
    return place


def add(venv: Path, folder: str, **files: str) -> Path:
    directory = site_packages(venv) / folder
    directory.mkdir()
    for name, text in files.items():
        (directory / name).write_bytes(text.encode())
    return directory


def test_unusual_directories(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path)
    add(venv, "ruamel.yaml-0.18.6.dist-info")
    add(
        venv,
        "my-old-tool-2.0.dist-info",
        METADATA="Metadata-Version: 2.1\r\nName: My.Old-Tool\r\nVersion: 2.0\r\n\r\n",
    )
    add(venv, "nonsense.dist-info", METADATA="Name: only-a-name\n\nVersion: 1.0 is in the description\n")
    add(venv, "~orch-2.9.1.dist-info", METADATA="Name: torch\nVersion: 2.9.1\n\n")
    add(venv, "torch-2.9.1.dist-info")
    add(venv, "torch-2.11.0+cu130.dist-info")
    (site_packages(venv) / "file-1.0.dist-info").touch()
    assert [str(dist) for dist in installed_dists(venv)] == [
        "my-old-tool 2.0",
        "ruamel-yaml 0.18.6",
        "torch 2.11.0+cu130",
        "torch 2.9.1",
    ]


def test_the_python_of_pyvenv_cfg_decides_between_two(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path, "python3.10", "python3.12")
    (venv / "bin").mkdir()
    (venv / "bin/python").symlink_to(sys.executable)
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.10.4\n")
    assert site_packages(venv) == venv / "lib/python3.10/site-packages"


def test_what_is_no_environment(tmp_path: Path) -> None:
    with pytest.raises(UnreadableEnvironmentError, match="not a virtual environment"):
        installed_dists(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "cannot be read"), ("a.py,sha256=x\n", "2 fields"), ("a.py,sha256=x,many\n", "damaged")],
)
def test_a_damaged_record(tmp_path: Path, text: str | None, words: str) -> None:
    venv = bare_venv(tmp_path)
    add(venv, "tool-1.0.dist-info", **({} if text is None else {"RECORD": text}))
    with pytest.raises(UnreadableEnvironmentError, match=words) as caught:
        record_entries(by_name(venv)["tool"])
    assert caught.value.remedy == "Install tool 1.0 again."


def test_record_with_commas_and_quotes(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path)
    add(venv, "tool-1.0.dist-info", RECORD='"a,b ""c"".py",sha256=AAAA,3\n\ntool-1.0.dist-info/RECORD,,\n')
    entries = record_entries(by_name(venv)["tool"])
    assert [entry.path for entry in entries] == ['a,b "c".py', "tool-1.0.dist-info/RECORD"]
    assert entries[0].hex_digest == "000000"


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"url": 3}'])
def test_a_damaged_direct_url_is_none(tmp_path: Path, text: str) -> None:
    venv = bare_venv(tmp_path)
    add(venv, "tool-1.0.dist-info", **{"direct_url.json": text})
    assert direct_url(by_name(venv)["tool"]) is None


def test_a_git_checkout(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path)
    document = {"url": "https://example.org/tool.git", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}
    add(venv, "tool-1.0.dist-info", **{"direct_url.json": json.dumps(document)})
    origin = direct_url(by_name(venv)["tool"])
    assert origin is not None
    assert (origin.revision, origin.editable, origin.directory) == ("abc123", False, None)
