"""What a build is made of, pinned: a directory, a git repository at a commit, or a source distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules import git_source, sdist_source
from crossgrade.modules.contract import ApplyContext, HostView, LockRequest
from crossgrade.modules.files import absolute
from crossgrade.modules.git_source import GitSource
from crossgrade.modules.sdist_source import Sdist
from crossgrade.modules.source_tree import copy_tree, digest_of_tree, project_name


@dataclass(frozen=True)
class Wanted:
    """A source as a playbook names it. `subdirectory` is where the Python project lies in it, "" for the top."""

    source: str = ""
    git: str = ""
    revision: str = ""
    sdist: str = ""
    sha256: str = ""
    subdirectory: str = ""
    submodules: bool = True
    mirrors: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Source:
    """`identity` is what the key holds of it; `shown` is for people; `name` is the project's, as far as it is known."""

    kind: Literal["directory", "git", "sdist"]
    identity: str
    shown: str
    name: str
    version: str = ""
    subdirectory: str = ""
    submodules: bool = True
    directory: Path | None = None
    git: GitSource | None = None
    commit: str = ""
    sdist: Sdist | None = None

    def inputs(self) -> dict[str, JSON]:
        more: dict[str, JSON] = {"subdirectory": self.subdirectory} if self.subdirectory else {}
        return {"source": self.identity, **more, **({"submodules": self.submodules} if self.git else {})}


def find_source(wanted: Wanted, request: LockRequest, host: HostView) -> Source:
    """Pin what is wanted. `request` holds the interpreter and the indexes. Raises TaskError."""
    subdirectory = wanted.subdirectory.strip("/")
    if ".." in PurePosixPath(subdirectory).parts:
        raise TaskError(f"the subdirectory {wanted.subdirectory} leads out of the source")
    if wanted.git:
        return _git(wanted, subdirectory, host)
    if wanted.revision:
        raise TaskError("a revision is of a git repository", remedy="Name the repository in `git`.")
    if wanted.sdist:
        path = absolute(wanted.sdist, host)
        sdist = sdist_source.find_sdist(wanted.sdist, wanted.sha256, request, host, path)
        shown = f"{sdist.file} ({sdist.sha256[:12]})"
        identity = f"sdist {sdist.sha256}"
        return Source("sdist", identity, shown, sdist.name, sdist.version, subdirectory, sdist=sdist)
    directory = absolute(wanted.source, host)
    if not directory.is_dir():
        raise TaskError(f"there is no source tree at {directory}", remedy="Name a directory with a pyproject.toml.")
    name = project_name(directory / subdirectory) or directory.name
    return Source("directory", digest_of_tree(directory), str(directory), name, "", subdirectory, directory=directory)


def _git(wanted: Wanted, subdirectory: str, host: HostView) -> Source:
    path = absolute(wanted.git, host)
    repository = str(path) if "://" not in wanted.git and path.is_dir() else wanted.git
    source = GitSource(repository, wanted.revision or "HEAD", wanted.mirrors or {})
    git_source.require_plain(source)
    if source.is_local and not path.is_dir():
        raise TaskError(f"there is no git repository at {path}", remedy="Give a URL, or the path of a clone.")
    commit = git_source.commit_of(source, host)
    name = PurePosixPath(repository.rstrip("/")).name.removesuffix(".git")
    shown = f"{source.shown} at {commit[:12]}{f' ({source.revision})' if source.revision != commit else ''}"
    return Source(
        "git", f"commit {commit}", shown, name, "", subdirectory, wanted.submodules, git=source, commit=commit
    )


# ---- looking into it before it is fetched


def reader(source: Source, host: HostView) -> Callable[[str], str | None]:
    """Reads a text file below the project's folder, by its relative path; None where it is not there, or not yet."""

    def read(path: str) -> str | None:
        full = f"{source.subdirectory}/{path}" if source.subdirectory else path
        if source.directory is not None:
            return text_of(source.directory / full)
        if source.git is not None:
            return git_source.file_at(source.git, source.commit, full, host)
        return sdist_source.text_in(source.sdist, full, host.store) if source.sdist else None

    return read


def top_reader(source: Source, host: HostView) -> Callable[[str], str | None]:
    """The same below the top of the source."""
    from dataclasses import replace

    return reader(replace(source, subdirectory=""), host)


def cmake_files(source: Source, host: HostView) -> list[str]:
    """CMake's files at the top of the project and in its `cmake` folder; none where it cannot be looked into yet."""
    if source.directory is not None:
        return cmake_files_in(source.directory / source.subdirectory)
    if source.git is None:
        return ["CMakeLists.txt"]
    folder = f"{source.subdirectory}/cmake" if source.subdirectory else "cmake"
    names = git_source.names_at(source.git, source.commit, folder, host)
    start = f"{source.subdirectory}/" if source.subdirectory else ""
    return ["CMakeLists.txt", *(name.removeprefix(start) for name in names if name.endswith(".cmake"))]


def cmake_files_in(project: Path) -> list[str]:
    found = [project / "CMakeLists.txt", *sorted((project / "cmake").glob("*.cmake"))]
    return [str(path.relative_to(project)) for path in found if path.is_file()]


def text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


# ---- bringing it


def provide(source: Source, place: Path, work: Path, context: ApplyContext) -> Path:
    """Put the source's files at `place`, which is not there yet; returns the project's folder. Raises TaskError."""
    top = place
    if source.directory is not None:
        copy_tree(source.directory, place)
        if digest_of_tree(place) != source.identity:
            raise TaskError(f"{source.directory} was changed while it was copied", remedy="Run again.")
    elif source.git is not None:
        repository = git_source.fetch(source.git, source.commit, context, work)
        git_source.check_out(source.git, repository, source.commit, place, context, submodules=source.submodules)
    elif source.sdist is not None:
        top = sdist_source.unpack(sdist_source.fetch(source.sdist, context, work), place)
    project = top / source.subdirectory
    if not any((project / name).is_file() for name in ("pyproject.toml", "setup.py")):
        raise TaskError(
            f"{source.shown} has no pyproject.toml{f' in {source.subdirectory}' if source.subdirectory else ''}",
            remedy="Name the folder that has one in `subdirectory`.",
        )
    return project


def moved_to(source: Source, host: HostView) -> str:
    """The commit that the revision stands for now, when it has moved since the plan; "" when not, or nobody can say."""
    if source.git is None or source.git.revision == source.commit:
        return ""
    try:
        now = git_source.look_up(source.git, host)
    except TaskError:
        return ""
    return now if now != source.commit else ""
