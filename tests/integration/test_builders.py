"""The builders, on real git repositories, source distributions and builds with CMake and ninja."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.support.builds import built, in_git
from tests.support.module_host import plan_module, run_module
from tests.support.small_project import CMAKE, call, commit_all, git, told, write_project
from tests.support.store_host import StoreHost, planned_change, undo_steps
from tests.support.toolkits import uv_program

from crossgrade.errors import TaskError
from crossgrade.modules import extension_build, sgl_kernel_build
from crossgrade.modules.contract import Change, Unchanged

BUILD = extension_build.MODULE
# A host that does not exist, by RFC 2606: no network answers for it, here or anywhere.
NOWHERE = "https://nowhere.invalid"


@pytest.fixture
def host(builder: StoreHost) -> StoreHost:
    return builder


# ---- git


def test_a_revision_is_built_once_in_its_own_environment(repository: Path, host: StoreHost) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    git(repository, "tag", "-a", "v1", "-m", "one")
    (repository / "kernels" / "one.c").write_text("int one(void) { return 100; }\n")
    commit_all(repository)
    arguments = in_git(repository, revision="v1", architectures=["12.0f"], jobs=2)
    change = planned_change(BUILD, arguments, host.planning())
    assert change.summary == f"build repository {commit[:12]} for 12.0f with 2 jobs"
    assert {each.subject for each in change.differences} >= {"wheel of repository", "architectures"}
    values = built(arguments, host)
    assert values["commit"] == commit
    assert call(values["wheel"], "one", host.directory) == 1, "the tag, not the branch"

    saw = told(values["wheel"])
    assert saw["TORCH_CUDA_ARCH_LIST"] == "12.0a"
    assert saw["FLASHINFER_CUDA_ARCH_LIST"] == "12.0f"
    assert saw["MAX_JOBS"] == saw["CMAKE_BUILD_PARALLEL_LEVEL"] == "2"
    assert saw["FLASHINFER_NVCC_THREADS"] == "1"
    assert Path(saw["VIRTUAL_ENV"]).parent.name == "build-environments"
    assert saw["FLASHINFER_WORKSPACE_BASE"].startswith(str(host.store.temporary)), "no cache of the user"
    shown = [message for message in host.messages if message.startswith("[")]
    assert any(re.match(r"\[4/4\] about \d+ s left: libsmall\.so", message) for message in shown), shown

    # the same commit again, by another name, from a clone and with other jobs: nothing is built or fetched
    host.started.clear()
    for same in (
        arguments,
        {**arguments, "revision": commit},
        {**arguments, "git": str(repository)},
        {**arguments, "jobs": 1},
    ):
        assert isinstance(plan_module(BUILD, same, host), Unchanged), same
    assert not any("build" in argv or "fetch" in argv for argv in host.started)
    assert not list(host.store.temporary.iterdir())
    assert not (repository / "kernels" / "build").exists()


@pytest.mark.parametrize(
    "other",
    [
        {"revision": "main"},
        {"environment": {"CFLAGS": "-O1"}},
        {"architectures": ["12.0"]},
        {"subdirectory": "other"},
        {"build_requirements": ["setuptools>=61", "ninja", "wheel"]},
        {"torch": "2.9.1"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_whatever_goes_into_a_build_is_part_of_its_key(
    other: dict[str, Any], repository: Path, host: StoreHost
) -> None:
    git(repository, "tag", "v1")
    (repository / "kernels" / "one.c").write_text("int one(void) { return 100; }\n")
    commit_all(repository)
    same = in_git(repository, revision="v1", architectures=["12.0f"])
    before = planned_change(BUILD, same, host.planning()).values["key"]
    assert planned_change(BUILD, same, host.planning()).values["key"] == before
    assert planned_change(BUILD, {**same, **other}, host.planning()).values["key"] != before


def test_another_compiler_is_another_build(repository: Path, host: StoreHost) -> None:
    before = planned_change(BUILD, in_git(repository), host.planning()).values["key"]
    pretender = host.directory / "bin" / "g++"
    pretender.parent.mkdir()
    pretender.write_text("#!/bin/sh\necho 99.1.0\n")
    pretender.chmod(0o755)
    host.environment = {**host.environment, "PATH": f"{pretender.parent}:{host.environment['PATH']}"}
    assert planned_change(BUILD, in_git(repository), host.planning()).values["key"] != before


def test_a_changed_compiler_flag_is_built_and_heard(repository: Path, host: StoreHost) -> None:
    source = repository / "kernels" / "one.c"
    source.write_text("#ifndef ANSWER\n#define ANSWER 1\n#endif\nint one(void) { return ANSWER; }\n")
    commit_all(repository)
    first = built(in_git(repository), host)
    second = built(in_git(repository, environment={"CFLAGS": "-DANSWER=42"}), host)
    assert [call(each["wheel"], "one", host.directory) for each in (first, second)] == [1, 42]


def test_a_branch_that_moved_since_the_plan_is_noticed(repository: Path, host: StoreHost) -> None:
    planned = git(repository, "rev-parse", "HEAD")
    arguments = in_git(repository, revision="main")
    assert plan_module(BUILD, arguments, host).values["commit"] == planned
    (repository / "kernels" / "one.c").write_text("int one(void) { return 2; }\n")
    moved = commit_all(repository)
    outcome = run_module(BUILD, arguments, host)
    assert outcome.values["commit"] == planned
    assert outcome.values["moved_to"] == moved
    assert call(outcome.values["wheel"], "one", host.directory) == 1, "what was planned is what is built"
    assert outcome.message == f"main has moved to {moved[:12]} since the plan; {planned[:12]} was built, as planned"
    host.pins.clear()  # the next plan
    assert planned_change(BUILD, arguments, host).values["commit"] == moved


def test_a_commit_that_was_rewritten_away_is_named(repository: Path, host: StoreHost) -> None:
    with pytest.raises(TaskError, match=f"has no commit {'0' * 40} any more|not our ref {'0' * 40}"):
        built(in_git(repository, revision="0" * 40), host)
    undo_steps(BUILD, host)
    assert not list(host.store.temporary.iterdir())
    assert not list(host.store.sources.iterdir())


def test_wrong_repositories_are_named(repository: Path, host: StoreHost) -> None:
    for arguments, said in (
        ({"git": "nowhere"}, "no git repository at"),
        (in_git(repository, revision="v9"), "has no branch or tag v9"),
        ({"git": str(repository), "revision": "v9"}, "has no revision v9"),
        (in_git(repository, revision="abcdef12"), "looks like a shortened commit"),
        (in_git(repository, revision="--upload-pack=x"), "is no revision"),
        ({"git": "ext::sh -c id"}, "would start a helper program"),
        ({"git": f"{NOWHERE}/x", "revision": "main"}, "git cannot read https://nowhere.invalid/x: .*resolve host"),
        ({"git": f"{NOWHERE}/x", "revision": "0" * 40}, r"hosts that do not answer \(nowhere\.invalid: fatal"),
        ({"source": str(repository), "subdirectory": "../x"}, "leads out of the source"),
        ({"sdist": "six"}, "names no exact version"),
        ({"sdist": f"{NOWHERE}/six-1.0.tar.gz"}, "checked by nothing"),
    ):
        with pytest.raises(TaskError, match=said):
            plan_module(BUILD, arguments, host.planning())
    with pytest.raises(TaskError, match=r"has no pyproject\.toml"):
        built(in_git(repository, subdirectory=""), host)


def test_submodules_come_along_or_are_refused_with_a_remedy(tmp_path: Path, host: StoreHost) -> None:
    library = tmp_path / "mirror" / "library"
    library.mkdir(parents=True)
    (library / "two.c").write_text("int two(void) { return 22; }\n")
    commit_all(library)
    main = write_project(tmp_path / "repository")
    (main / "CMakeLists.txt").write_text(CMAKE.replace("two.c", "library/two.c"))
    commit_all(main)
    git(main, "submodule", "add", "--quiet", str(library), "library")
    (main / ".gitmodules").write_text(f'[submodule "library"]\n\tpath = library\n\turl = {NOWHERE}/library\n')
    commit_all(main)
    arguments = {"git": str(main), "build_requirements": ["setuptools>=61", "ninja"]}
    with pytest.raises(TaskError, match=r"(?s)of hosts that do not answer \(nowhere\.invalid.*mirrors"):
        plan_module(BUILD, arguments, host.planning())
    values = built({**arguments, "mirrors": {f"{NOWHERE}/": f"{tmp_path}/mirror/"}}, host)
    assert call(values["wheel"], "two", tmp_path) == 22


# ---- what the build itself clones


FETCHING = """\
cmake_minimum_required(VERSION 3.20)
project(small C)
include(FetchContent)
FetchContent_Declare(repo-library GIT_REPOSITORY https://nowhere.invalid/library GIT_TAG @COMMIT@)
FetchContent_Populate(repo-library)
add_library(small SHARED one.c ${repo-library_SOURCE_DIR}/two.c three.c)
"""


@pytest.fixture
def fetching(tmp_path: Path) -> Path:
    """A project whose CMake clones a library, which lies at mirror/library."""
    library = tmp_path / "mirror" / "library"
    library.mkdir(parents=True)
    (library / "two.c").write_text("int two(void) { return 222; }\n")
    commit = commit_all(library)
    return write_project(tmp_path / "project", cmake=FETCHING.replace("@COMMIT@", commit))


def test_a_host_that_does_not_answer_is_told_before_the_build(fetching: Path, host: StoreHost) -> None:
    said = (
        r"nowhere.invalid: fatal: .*nowhere.invalid/library at [0-9a-f]{12}.*\n.*cmake_sources: \{repo-library: PATH\}"
    )
    with pytest.raises(TaskError, match=said):
        plan_module(BUILD, {"source": str(fetching)}, host.planning())
    with pytest.raises(TaskError, match=said):  # a run that nobody planned
        built({"source": str(fetching)}, host)
    assert not any("--wheel" in argv for argv in host.started)
    # the same of a repository that is only known by its commit, which the plan reads in the clone
    commit_all(fetching)
    with pytest.raises(TaskError, match=said):
        plan_module(BUILD, {"git": str(fetching)}, host.planning())


@pytest.mark.parametrize("way", ["cmake_sources", "mirrors"])
def test_a_checkout_or_a_mirror_takes_its_place(way: str, fetching: Path, host: StoreHost) -> None:
    mirror = fetching.parent / "mirror"
    given = {"repo-library": str(mirror / "library")} if way == "cmake_sources" else {f"{NOWHERE}/": f"{mirror}/"}
    arguments = {"source": str(fetching), way: given, "build_requirements": ["setuptools>=61", "ninja"]}
    assert isinstance(plan_module(BUILD, arguments, host.planning()), Change)
    values = built(arguments, host)
    assert call(values["wheel"], "two", host.directory) == 222
    assert isinstance(plan_module(BUILD, arguments, host.planning()), Unchanged)
    if way == "cmake_sources":
        (mirror / "library" / "two.c").write_text("int two(void) { return 3; }\n")
        assert isinstance(plan_module(BUILD, arguments, host.planning()), Change), "its content counts"


def test_the_kernels_of_sglang_cannot_be_built_without_github(tmp_path: Path, host: StoreHost) -> None:
    """Its CMakeLists.txt clones from GitHub; the host is known before any source is here."""
    place = tmp_path / "sglang"
    write_project(place / "sgl-kernel", cmake=FETCHING.replace("@COMMIT@", "0" * 40))
    commit_all(place)
    arguments: dict[str, Any] = {"git": str(place), "build_requirements": ["setuptools", "ninja"]}
    with pytest.raises(TaskError, match=r"does not answer|do not answer"):
        plan_module(sgl_kernel_build.MODULE, arguments, host.planning())
    library = tmp_path / "library"
    library.mkdir()
    (library / "two.c").write_text("int two(void) { return 2; }\n")
    arguments |= {"cmake_sources": {"repo-library": str(library)}, "nvcc_threads": 2, "below_sm90": False}
    host.environment = {**host.environment, "CMAKE_ARGS": "-DMINE=1"}
    saw = told(run_module(sgl_kernel_build.MODULE, arguments, host).values["wheel"])
    options = saw["CMAKE_ARGS"].split()
    assert "-DSGL_KERNEL_COMPILE_THREADS=2" in options
    assert "-DENABLE_BELOW_SM90=OFF" in options
    assert options[-1] == "-DMINE=1", "the user's own comes last and wins"
    assert any(each.startswith("-DFETCHCONTENT_SOURCE_DIR_REPO-LIBRARY=") for each in options)
    assert saw["CMAKE_POLICY_VERSION_MINIMUM"] == "3.5"


# ---- source distributions


def test_a_source_distribution_of_the_index(host: StoreHost) -> None:
    arguments = {"sdist": "markupsafe==3.0.2", "build_requirements": ["setuptools>=70.1"]}
    change = planned_change(BUILD, arguments, host)
    assert change.summary.startswith("build markupsafe 3.0.2 with ")
    outcome = run_module(BUILD, arguments, host)
    wheel = next(Path(outcome.values["wheel"]).glob("*.whl"))
    code = f"import sys; sys.path.insert(0, {str(host.directory / 'site')!r}); import markupsafe._speedups"
    install = [uv_program(), "pip", "install", "--quiet", "--python", sys.executable, "--no-deps", "--target"]
    subprocess.run([*install, str(host.directory / "site"), str(wheel)], check=True)
    subprocess.run([sys.executable, "-c", code], check=True)
    host.started.clear()
    assert isinstance(plan_module(BUILD, arguments, host), Unchanged)
    kept = next(host.store.sources.glob("sdist-*"))
    with pytest.raises(TaskError, match=r"the index has markupsafe==3\.0\.2 with the sha256 ee55"):
        plan_module(BUILD, {**arguments, "sha256": "0" * 64}, host.planning())
    # a file that is not what was planned is not built
    next(kept.iterdir()).write_bytes(b"something else")
    with pytest.raises(TaskError, match="is not what was planned"):
        built({**arguments, "environment": {"X": "1"}}, host)


@pytest.fixture
def served(host: StoreHost) -> Iterator[str]:
    """The address of a server that has the files of the host's directory."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(host.directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_source_distribution_by_its_url_and_as_a_file(host: StoreHost, served: str) -> None:
    place = write_project(host.directory / "small_kernels-1.0")
    (place / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: small-kernels\nVersion: 1.0\n")
    file = shutil.make_archive(str(host.directory / "small_kernels-1.0"), "gztar", host.directory, place.name)
    by_file = built({"sdist": file, "build_requirements": ["setuptools>=61", "ninja"]}, host)
    digest = subprocess.run(["sha256sum", file], capture_output=True, text=True, check=True).stdout.split()[0]
    url = {"sdist": f"{served}/{Path(file).name}", "sha256": digest, "build_requirements": ["setuptools>=61", "ninja"]}
    assert isinstance(plan_module(BUILD, url, host), Unchanged), "the same content is the same source"
    assert told(by_file["wheel"])["SETUPTOOLS_SCM_PRETEND_VERSION_FOR_SMALL_KERNELS"] == "1.0"
    built({**url, "environment": {"X": "1"}}, host)
    assert (host.store.sources / f"sdist-{digest}").is_dir()
    with pytest.raises(TaskError, match=f"has the sha256 {digest} .*, not {'0' * 64}: it is not used"):
        built({**url, "sha256": "0" * 64}, host)


def test_an_index_without_a_source_distribution(host: StoreHost) -> None:
    with pytest.raises(TaskError, match=r"no source distribution of sgl-kernel==0\.3\.21"):
        plan_module(sgl_kernel_build.MODULE, {"sdist": "sgl-kernel==0.3.21", "torch": "2.9.1"}, host.planning())
