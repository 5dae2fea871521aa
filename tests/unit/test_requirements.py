"""Requirements that installed dists state: beside `pip check` and `uv pip check`, and for metadata that people have."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.tiny_wheels import tiny_venv, tiny_wheel
from tests.support.toolkits import uv_program

from crossgrade.inspect.dists import InstalledDist, UnreadableEnvironmentError, site_packages
from crossgrade.inspect.requirements import Unmet, marker_environment, required_names, unmet


def bare_venv(place: Path, python: str = "3.11", settings: str = "") -> Path:
    """A folder as a venv of that Python has it; it stays that Python's, whichever runs the tests."""
    (place / f"lib/python{python}/site-packages").mkdir(parents=True)
    (place / "bin").mkdir()
    (place / "bin/python").symlink_to(sys.executable)
    (place / "pyvenv.cfg").write_text(settings or f"home = /usr/bin\nversion = {python}.4\n")
    return place


def add(venv: Path, name: str, version: str, *requires: str, metadata: bytes | None = None) -> Path:
    folder = site_packages(venv) / f"{name}-{version}.dist-info"
    folder.mkdir()
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    lines += [f"Requires-Dist: {requirement}\n" for requirement in requires]
    (folder / "METADATA").write_bytes("".join([*lines, "\nWords.\n"]).encode() if metadata is None else metadata)
    return folder


def words(venv: Path) -> list[str]:
    return [str(item) for item in unmet(venv)]


def only(venv: Path) -> Unmet:
    (found,) = unmet(venv)
    return found


# The oracles


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real venv in which some requirements are met and some are not."""
    place = tmp_path_factory.mktemp("requirements")
    needs = [
        "numpy<2",
        "Absent_Dist>=1",
        "torch==2.9.1",
        "pre>=2.0a1",
        "pre<3",
        "tool[gui]~=1.4",
        "behind-extra; extra == 'gui'",
        "old-only; python_version < '3'",
        "by-url @ https://example.invalid/by_url-9-py3-none-any.whl",
        "linux-only; sys_platform == 'linux'",
    ]
    wheels = [
        tiny_wheel(place, "engine", "1.0", requires=needs),
        tiny_wheel(place, "numpy", "2.1"),
        tiny_wheel(place, "torch", "2.9.1+cu128"),
        tiny_wheel(place, "pre", "2.5rc1", requires=["torch!=2.9.1"]),
        tiny_wheel(place, "tool", "1.5.2", requires=["engine>=1.0,<2"]),
        tiny_wheel(place, "by-url", "1"),
    ]
    return tiny_venv(place / "venv", *wheels)


EXPECTED = {
    ("engine", "numpy", "2.1"),
    ("engine", "absent-dist", ""),
    ("engine", "linux-only", ""),
    ("pre", "torch", "2.9.1+cu128"),
}


def test_the_findings_of_a_broken_venv(broken: Path) -> None:
    assert {(item.dist.name, item.name, "".join(item.installed)) for item in unmet(broken)} == EXPECTED
    assert words(broken) == [
        "engine 1.0 needs numpy<2, and numpy 2.1 is installed",
        "engine 1.0 needs Absent_Dist>=1, and absent-dist is not installed",
        "engine 1.0 needs linux-only, and linux-only is not installed",
        "pre 2.5rc1 needs torch!=2.9.1, and torch 2.9.1+cu128 is installed",
    ]


def test_pip_check_finds_the_same(broken: Path) -> None:
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        broken / "bin/python",
        "check",
    ]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = {
        (dist, re.sub(r"[-_.]+", "-", name).lower(), version)
        for dist, name, version in re.findall(
            r"^(\S+) \S+ has requirement .*, but you have (\S+) (\S+)\.$", text, re.MULTILINE
        )
    }
    for dist, name in re.findall(r"^(\S+) \S+ requires (\S+), which is not installed\.$", text, re.MULTILINE):
        found.add((dist, re.sub(r"[-_.]+", "-", name).lower(), ""))
    assert found == EXPECTED, text


def test_uv_pip_check_finds_the_same(broken: Path) -> None:
    command: list[str | Path] = [uv_program(), "--offline", "pip", "check", "--python", broken / "bin/python"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    found = {
        (dist, re.split(r"[^\w.-]", asked)[0], version)
        for dist, asked, version in re.findall(
            r"^The package `(\S+)` requires `([^`]+)`, but (?:`([^`]+)` is|it's not) installed", text, re.MULTILINE
        )
    }
    assert found == EXPECTED, text


def test_a_whole_venv_has_no_findings(tmp_path: Path) -> None:
    wheels = tiny_wheel(tmp_path, "a", "1", requires=["b~=2.0"]), tiny_wheel(tmp_path, "b", "2.4")
    assert unmet(tiny_venv(tmp_path / "venv", *wheels)) == ()


# The variables of markers


def test_markers_are_those_of_the_venvs_own_python(tmp_path: Path) -> None:
    venv = tiny_venv(tmp_path / "venv")
    code = (
        "import json, os, platform, sys; print(json.dumps({'python_full_version': platform.python_version(),"
        "'python_version': '.'.join(platform.python_version_tuple()[:2]), 'os_name': os.name,"
        "'sys_platform': sys.platform, 'platform_machine': platform.machine(),"
        "'platform_system': platform.system(), 'platform_release': platform.release(),"
        "'platform_version': platform.version(), 'implementation_name': sys.implementation.name,"
        "'platform_python_implementation': platform.python_implementation(),"
        "'implementation_version': platform.python_version(), 'extra': ''}))"
    )
    answer = json.loads(subprocess.check_output([venv / "bin/python", "-c", code], text=True))
    assert marker_environment(venv) == answer


@pytest.mark.parametrize("python", ["3.8", "3.10", "3.14"])
def test_another_python_than_the_running_one(tmp_path: Path, python: str) -> None:
    venv = bare_venv(tmp_path, python)
    markers = {version: f"for-{version}; python_version == '{version}'" for version in ("3.8", "3.10", "3.14")}
    add(venv, "a", "1", *markers.values(), f"patch; python_full_version >= '{python}.4'")
    assert [item.name for item in unmet(venv)] == [f"for-{python}".replace(".", "-"), "patch"]


@pytest.mark.parametrize(
    ("settings", "full"),
    [
        ("version_info = 3.11.9\n", "3.11.9"),  # uv
        ("version = 3.11.9\nversion_info = 3.11.9.final.0\n", "3.11.9"),  # virtualenv
        ("version_info = 3.11.0.candidate.2\n", "3.11.0rc2"),
        ("version = 3.11.0rc2\n", "3.11.0rc2"),
        ("version = 3.11\n", "3.11.0"),
        ("home = /usr/bin\n", "3.11.0"),
    ],
)
def test_the_full_version(tmp_path: Path, settings: str, full: str) -> None:
    assert marker_environment(bare_venv(tmp_path, settings=settings))["python_full_version"] == full


def test_without_an_interpreter_the_library_directory_tells_the_python(tmp_path: Path) -> None:
    (tmp_path / "lib/python3.13t/site-packages").mkdir(parents=True)
    assert marker_environment(tmp_path)["python_version"] == "3.13"


def test_what_is_no_environment(tmp_path: Path) -> None:
    with pytest.raises(UnreadableEnvironmentError, match="not a virtual environment"):
        unmet(tmp_path)


# Versions


@pytest.mark.parametrize(
    ("asked", "installed", "met"),
    [
        ("x==2.9.1", "2.9.1+cu128", True),
        ("x==2.9.1+cu130", "2.9.1+cu128", False),
        ("x<=2.9.1", "2.9.1+cu128", True),
        ("x>=2.0", "2.1.dev3", True),
        ("x<2.0", "2.0rc1", False),
        ("x (>=1.0)", "1.0", True),
        ("x", "not a version", True),
    ],
)
def test_versions(tmp_path: Path, asked: str, installed: str, met: bool) -> None:
    venv = bare_venv(tmp_path)
    add(venv, "a", "1", asked)
    folder = site_packages(venv) / "x-odd.dist-info"  # found by its METADATA, as its version needs it
    folder.mkdir()
    (folder / "METADATA").write_text(f"Name: x\nVersion: {installed}\n\n")
    assert (unmet(venv) == ()) is met


def test_of_two_versions_each_has_to_fit(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path)
    add(venv, "a", "1", "torch>=2.10")
    for version in ("2.9.1", "2.11.0"):
        (site_packages(venv) / f"torch-{version}.dist-info").mkdir()
        (site_packages(venv) / f"torch-{version}.dist-info/METADATA").write_text("Name: torch\n\n")
    assert words(venv) == ["a 1 needs torch>=2.10, and torch 2.11.0 and 2.9.1 is installed"]


# Metadata that people have


def test_line_ends_folded_lines_and_words_after_the_headers(tmp_path: Path) -> None:
    text = b"Metadata-Version: 2.1\r\nNAME: a\r\nrequires-dist: one\r\n  >=1\r\nRequires-Dist: one>=1\r\n\r\n"
    text += b"Requires-Dist: only-described\r\n"
    venv = bare_venv(tmp_path)
    add(venv, "a", "1", metadata=text + b"\xff\xfe")
    assert [item.requirement for item in unmet(venv)] == ["one >=1", "one>=1"]


@pytest.mark.parametrize(
    "text",
    [
        "x>=",
        "x >= 1.0 nonsense",
        "x; no_such_variable == '1'",
        "x; sys_platform ~= 'linux'",
        "x>=" + "9" * 5000,
        "x; " + "(" * 20_000,
        "\x00",
        "",
    ],
)
def test_a_requirement_that_cannot_be_parsed_is_an_item(tmp_path: Path, text: str) -> None:
    venv = bare_venv(tmp_path)
    add(venv, "a", "1", text, "missing")
    add(venv, "x", "1.0")
    found = unmet(venv)
    assert [item.lack for item in found] == ["requirement", "missing"]
    assert found[0].problem
    assert str(found[0]).startswith("a 1 has a requirement that cannot be judged (")


def test_a_version_that_is_none_is_an_item(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path)
    add(venv, "a", "1", "x>=1")
    folder = site_packages(venv) / "x-odd.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: x\nVersion: unknown\n\n")
    assert str(only(venv)) == "a 1 has a requirement that cannot be judged (x>=1): Invalid version: 'unknown'"


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        (b"", "is damaged (it is empty)"),
        (b"\x00\xff\x00" * 9, "is damaged (it states no name)"),
        (None, "be read (No such"),
    ],
)
def test_damaged_metadata_is_an_item(tmp_path: Path, metadata: bytes | None, problem: str) -> None:
    venv = bare_venv(tmp_path)
    folder = add(venv, "a", "1", metadata=metadata)
    if metadata is None:
        (folder / "METADATA").unlink()
    found = only(venv)
    assert found.lack == "metadata"
    assert problem in str(found)


def test_the_names_that_a_dist_asks_for(tmp_path: Path) -> None:
    folder = tmp_path / "engine-1.0.dist-info"
    folder.mkdir()
    lines = ["Torch_Audio==2.9", "numpy>=2 ; sys_platform == 'win32'", "x[all] ; extra == 'y'", "not a requirement ((("]
    text = "Metadata-Version: 2.1\nName: engine\nVersion: 1.0\n" + "".join(f"Requires-Dist: {line}\n" for line in lines)
    (folder / "METADATA").write_text(text)
    assert required_names(InstalledDist("engine", "1.0", folder)) == {"torch-audio", "numpy", "x"}
