"""The parts of the builder that are functions from text to data, and unpacking archives."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossgrade.errors import TaskError
from crossgrade.modules import build_inputs, sdist_source
from crossgrade.modules.architecture_lists import respelled, spelled
from crossgrade.modules.build_environment import build_system, torch_requirement
from crossgrade.modules.build_progress import Estimate, Progress, lasting, progress_of
from crossgrade.modules.build_reach import declared_in, host_of, mirrored, submodules_in
from crossgrade.modules.build_run import require_torch
from crossgrade.modules.git_source import GitSource, chosen_commit, git_environment

# ---- progress: lines as ninja 1.11, CMake 3.25 and torch's cpp_extension print them


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[12/345] Building CUDA object x.dir/a.cu.o", (12, 345, "Building CUDA object x.dir/a.cu.o")),
        ("[1/2] /usr/local/cuda/bin/nvcc -I/v/include -arch=sm_120a -c /s/x.cu -o x.o", (1, 2, "x.cu")),
        ("[2/2] c++ x.o -shared -lcudart -o /b/common_ops.abi3.so", (2, 2, "common_ops.abi3.so")),
        ("\x1b[32m[ 50%] Building C object one.c.o\x1b[0m", (50, 100, "Building C object one.c.o")),
        ("[0/1] Re-running CMake...", (0, 1, "Re-running CMake...")),
        ("  [7/7]", (7, 7, "")),
    ],
)  # fmt: skip
def test_progress_is_read_from_what_build_tools_print(line: str, expected: tuple[int, int, str]) -> None:
    assert progress_of(line) == Progress(*expected)


@pytest.mark.parametrize(
    "line", ["", "ninja: no work to do.", "[3/2] x", "[0/0] x", "warning [12/345] in the middle", "[12/345", "[120%] x"]
)
def test_other_lines_say_nothing_of_progress(line: str) -> None:
    assert progress_of(line) is None


@given(st.text())
def test_any_line_can_be_shown(line: str) -> None:
    assert len(Estimate().shown(line)) < 200


def test_what_is_left_is_estimated_from_the_steps_that_are_done() -> None:
    now = [100.0]
    estimate = Estimate(lambda: now[0])
    assert estimate.shown("[1/101] a") == "[1/101] a"  # nothing is known yet of how long a step takes
    now[0] += 600.0
    assert estimate.shown("[11/101] b") == "[11/101] about 1.5 h left: b"
    assert estimate.shown("note: something") == "[11/101] note: something"
    now[0] += 5.0
    assert estimate.shown("[1/2] c") == "[1/2] c", "a second ninja counts anew"
    assert [lasting(each) for each in (5.0, 89.0, 600.0, 7200.0)] == ["5 s", "89 s", "10 min", "2.0 h"]


# ---- what a source asks for


def test_build_requirements_are_read_from_pyproject() -> None:
    # as in sgl-kernel's, with a requirement that is commented out, extras and both kinds of quotes
    text = """\
[build-system]
requires = [
  "scikit-build-core[pyproject]>=0.10",
  # "torch>=2.5.1",
  'wheel',  # "not this"
  "tomli; python_version < '3.11'",
]
build-backend = "scikit_build_core.build"
[project]
requires = ["other"]
"""
    requires, backend = build_system(text)
    assert requires[:3] == ("scikit-build-core[pyproject]>=0.10", "wheel", "tomli; python_version < '3.11'")
    assert requires[3:] == ("cmake>=3.26", "ninja"), "what this back end asks for only when a build begins"
    assert backend == "scikit_build_core.build"
    assert build_system("[project]\nname = 'x'\n") == (("setuptools>=40.8.0", "wheel"), "setuptools.build_meta")
    assert build_system('[build-system]\nrequires = ["a"]\n')[0] == ("a",)
    assert torch_requirement("2.14.1+cu130") == "torch==2.14.1+cu130"
    assert torch_requirement("torch==2.14.1") == "torch==2.14.1"


SGL_KERNEL = """\
include(FetchContent)
FetchContent_Declare(
    repo-cutlass
    GIT_REPOSITORY https://github.com/NVIDIA/cutlass
    GIT_TAG        57e3cfb47a2d9e0d46eb6335c3dc411498efa198
    GIT_SHALLOW    OFF
)
# FetchContent_Declare(old GIT_REPOSITORY https://example.invalid/old)
FetchContent_Declare(repo-triton GIT_REPOSITORY "https://github.com/triton-lang/triton" GIT_TAG main)
FetchContent_Declare(archive URL https://example.invalid/a.tar.gz)
FetchContent_Declare(elsewhere GIT_REPOSITORY ${MIRROR}/x)
"""


def test_what_cmake_clones_is_read_from_its_files() -> None:
    cutlass, triton = declared_in(SGL_KERNEL)
    assert (cutlass.name, cutlass.url) == ("repo-cutlass", "https://github.com/NVIDIA/cutlass")
    assert cutlass.option == "FETCHCONTENT_SOURCE_DIR_REPO-CUTLASS"
    assert cutlass.is_exact
    assert not triton.is_exact
    modules = (
        '[submodule "a"]\n\tpath = 3rdparty/a\n\turl = https://github.com/NVIDIA/a.git\n[submodule "b"]\n\turl = ../b\n'
    )
    assert [each.url for each in submodules_in(modules)] == ["https://github.com/NVIDIA/a.git"]


def test_urls_are_read_from_their_mirrors() -> None:
    mirrors = {"https://github.com/": "https://git.house/", "https://github.com/NVIDIA/": "/srv/nvidia/"}
    assert mirrored("https://github.com/NVIDIA/cutlass", mirrors) == "/srv/nvidia/cutlass"
    assert mirrored("https://github.com/fmtlib/fmt", mirrors) == "https://git.house/fmtlib/fmt"
    assert mirrored("https://gitlab.com/x", mirrors) == "https://gitlab.com/x"
    hosts = ["https://u:p@github.com/x", "git@github.com:x/y", "ssh://git@host:22/x", "/srv/x", "file:///srv/x"]
    assert [host_of(url) for url in hosts] == ["github.com", "github.com", "host:22", "", ""]
    # what the user has there already stays
    told = git_environment({"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "a.b"}, {"https://github.com/": "https://m/"})
    assert told["GIT_CONFIG_KEY_1"] == "url.https://m/.insteadOf"
    assert "GIT_CONFIG_KEY_0" not in told
    assert "protocol.file.allow" not in told.values()


A, B, C = "a" * 40, "b" * 40, "c" * 40


def test_a_revision_is_picked_from_what_a_host_lists() -> None:
    listing = f"{A}\trefs/heads/main\n{B}\trefs/heads/old/main\n{C}\trefs/tags/v1\n{B}\trefs/tags/v1^{{}}\n{A}\tHEAD\n"
    assert chosen_commit(listing, "main", "x") == A
    assert chosen_commit(listing, "v1", "x") == B, "the commit that an annotated tag points at"
    assert chosen_commit(listing, "HEAD", "x") == A
    assert chosen_commit(listing, "refs/tags/v1", "x") == B
    with pytest.raises(TaskError, match="no branch or tag ain"):
        chosen_commit(listing, "ain", "x")
    with pytest.raises(TaskError, match="is a branch and a tag"):
        chosen_commit(f"{A}\trefs/heads/v1\n{B}\trefs/tags/v1\n", "v1", "x")
    assert GitSource("git@github.com:a/b", "main", {}).is_local is False


# ---- architectures


def test_each_tool_is_told_in_its_own_spelling() -> None:
    found = spelled(["12.0f", "9.0+PTX"])
    assert found == {
        "CROSSGRADE_CUDA_ARCHITECTURES": "12.0f;9.0+PTX",
        "TORCH_CUDA_ARCH_LIST": "12.0a;9.0+PTX",  # torch raises for 12.0f
        "FLASHINFER_CUDA_ARCH_LIST": "12.0f 9.0",
        "CUDAARCHS": "120f-real;90",
    }
    assert spelled(["12.0a", "12.0f"])["TORCH_CUDA_ARCH_LIST"] == "12.0a"
    assert "PyTorch is told 12.0a for 12.0f" in respelled(["12.0f"])
    assert respelled(["12.0a"]) == []
    assert spelled([]) == {}
    with pytest.raises(TaskError, match="'sm_120' is no GPU architecture"):
        spelled(["sm_120"])


def test_jobs_follow_the_memory_that_a_project_takes() -> None:
    assert build_inputs.job_bytes("sgl-kernel") == 5_000_000_000
    assert build_inputs.job_bytes("whatever") == 4 << 30
    assert build_inputs.default_jobs(64, 64 << 30, build_inputs.job_bytes("sgl-kernel")) == 13
    assert build_inputs.default_jobs(64, 64 << 30, 8 * build_inputs.job_bytes("sgl-kernel")) == 1


def test_a_wheel_may_ask_for_no_other_torch() -> None:
    said = {"Requires-Dist": ["numpy", "torch==2.9.1", "torch>=9; extra == 'b12x'", "torchvision==1.0"]}
    require_torch(said, "2.9.1", "x.whl")
    require_torch(said, "2.9.1+cu128", "x.whl")
    require_torch({"Requires-Dist": ["torch"]}, "2.14.1", "x.whl")
    with pytest.raises(TaskError, match=r"x\.whl asks for torch==2\.9\.1, and was built for torch 2\.14\.1"):
        require_torch(said, "2.14.1", "x.whl")


# ---- archives


def tar_with(file: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(file, "w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file


def member(name: str, change: Callable[[tarfile.TarInfo], None] = lambda _: None) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    change(made)
    return made


def as_link(target: str, kind: bytes = tarfile.SYMTYPE) -> Callable[[tarfile.TarInfo], None]:
    def change(made: tarfile.TarInfo) -> None:
        made.type, made.linkname = kind, target

    return change


def as_device(made: tarfile.TarInfo) -> None:
    made.type, made.devmajor, made.devminor = tarfile.CHRTYPE, 1, 3


@pytest.mark.parametrize(
    "members",
    [
        [member("../outside")],
        [member("x/../../outside")],
        [member("/tmp/crossgrade-outside")],  # noqa: S108 - never written
        [member("x/link", as_link("../../outside"))],
        [member("x/link", as_link("/etc/passwd"))],
        [member("x/link", as_link("../outside")), member("x/link/file")],
        [member("x/link", as_link("../../outside", tarfile.LNKTYPE))],
        [member("x/null", as_device)],
    ],
    ids=["up", "through a folder", "absolute", "link up", "absolute link", "through a link", "hard link", "device"],
)
def test_a_hostile_archive_is_refused(members: list[tarfile.TarInfo], tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    file = tar_with(inside / "evil-1.0.tar.gz", (member("x/pyproject.toml"), b"ok"), *((each, b"") for each in members))
    before = set(tmp_path.iterdir())
    with pytest.raises(TaskError, match=r"evil-1\.0\.tar\.gz is not unpacked"):
        sdist_source.unpack(file, inside / "place")
    assert set(tmp_path.iterdir()) == before
    assert not Path("/tmp/crossgrade-outside").exists()  # noqa: S108 - as above


def test_a_hostile_or_damaged_zip_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "evil-1.0.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("../outside", "x")
    with pytest.raises(TaskError, match="would lie outside"):
        sdist_source.unpack(file, tmp_path / "place")
    (tmp_path / "broken-1.0.tar.gz").write_bytes(b"\x1f\x8b\x08 this is no gzip")
    with pytest.raises(TaskError, match="is not unpacked"):
        sdist_source.unpack(tmp_path / "broken-1.0.tar.gz", tmp_path / "other")


def test_an_honest_archive_is_unpacked_and_states_its_version(tmp_path: Path) -> None:
    def executable(made: tarfile.TarInfo) -> None:
        made.mode = 0o4755

    file = tar_with(
        tmp_path / "small-1.0.tar.gz",
        (member("small-1.0/PKG-INFO"), b"Metadata-Version: 2.1\nName: small\nVersion: 1.0\n\nVersion: 9 in the text\n"),
        (member("small-1.0/run.sh", executable), b"#!/bin/sh\n"),
        (member("small-1.0/link", as_link("run.sh")), b""),
    )
    folder = sdist_source.unpack(file, tmp_path / "place")
    assert folder.name == "small-1.0"
    assert sdist_source.stated_version(folder) == ("small", "1.0")
    assert (folder / "link").read_text() == "#!/bin/sh\n"
    assert (folder / "run.sh").stat().st_mode & 0o7777 == 0o755, "no setuid"


def test_a_url_keeps_its_password_to_itself() -> None:
    source = GitSource("https://user:secret@git.house/x", "main", {})
    assert source.shown == "https://git.house/x"
