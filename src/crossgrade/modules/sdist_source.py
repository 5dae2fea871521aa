"""A source distribution as the source of a build: `name==version` from the index, a URL, or a file.

uv says where the index has it and which sha256 it must have; the file is kept in STORE/sources/sdist-SHA256 under its
own name. Nothing of it is executed before the build.
"""

from __future__ import annotations

import json
import re
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from crossgrade.errors import TaskError
from crossgrade.facts.indexes import shown_url
from crossgrade.modules.contract import ApplyContext, HostView, LockRequest
from crossgrade.modules.downloading import download
from crossgrade.modules.wheels import sha256_of
from crossgrade.places import free_bytes, shown_bytes
from crossgrade.store.layout import Store

_STATED = re.compile(r'^sdist = \{ url = "([^"]+)".*hashes = \{[^}]*\bsha256 = "([0-9a-f]{64})"', re.MULTILINE)
_PATH = re.compile(r'^sdist = \{ path = "([^"]+)".*hashes = \{[^}]*\bsha256 = "([0-9a-f]{64})"', re.MULTILINE)
_ENDINGS = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
_LARGEST_TEXT = 1 << 20


@dataclass(frozen=True)
class Sdist:
    """`place` is a URL or the path of a file; `file` its name; `name` and `version` are "" where nobody says them."""

    place: str
    sha256: str
    file: str
    name: str = ""
    version: str = ""

    @property
    def is_local(self) -> bool:
        return "://" not in self.place


def find_sdist(given: str, sha256: str, request: LockRequest, host: HostView, path: Path) -> Sdist:
    """What `sdist` names. `request` holds the interpreter and the indexes, `path` is `given` as a path of this machine.

    Raises TaskError when there is none, or when it is not what `sha256` says.
    """
    if given.startswith("file://"):
        from urllib.parse import unquote, urlsplit

        given = unquote(urlsplit(given).path)
        path = Path(given)
    if "://" in given:
        if not sha256:
            raise TaskError(f"{shown_url(given)} is to be checked by nothing", remedy="Give its `sha256` too.")
        return _named(Sdist(given, sha256.lower(), _file_name(given)))
    if given.endswith(_ENDINGS):
        if not path.is_file():
            raise TaskError(f"there is no file {path}")
        found = sha256_of(path)
        if sha256 and found != sha256.lower():
            raise TaskError(f"{path} is not what was asked for: its sha256 is {found}")
        return _named(Sdist(str(path), found, path.name))
    return _in_index(given, sha256, request, host)


def _file_name(url: str) -> str:
    from urllib.parse import unquote, urlsplit

    return PurePosixPath(unquote(urlsplit(url).path)).name


def _named(sdist: Sdist) -> Sdist:
    from packaging.utils import InvalidSdistFilename, parse_sdist_filename

    try:
        name, version = parse_sdist_filename(sdist.file)
    except InvalidSdistFilename:
        return sdist  # an archive of another kind, of a host of repositories say
    return Sdist(sdist.place, sdist.sha256, sdist.file, name, str(version))


def _in_index(given: str, sha256: str, request: LockRequest, host: HostView) -> Sdist:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(given)
    except InvalidRequirement as error:
        raise TaskError(
            f"{given!r} is no source distribution: {error}", remedy="Write name==version, a URL or a file's path."
        ) from error
    exact = [one.version for one in requirement.specifier if one.operator in ("==", "===")]
    if len(exact) != 1 or exact[0].endswith("*") or requirement.url:
        raise TaskError(f"{given} names no exact version", remedy=f"Write {requirement.name}==VERSION.")
    found = json.loads(host.pinned(f"sdist {given}", lambda: json.dumps(_ask_index(given, request, host))))
    place, stated = str(found["place"]), str(found["sha256"])
    if sha256 and sha256.lower() != stated:
        raise TaskError(f"the index has {given} with the sha256 {stated}, and {sha256.lower()} is asked for")
    return _named(Sdist(place, stated, _file_name(place)))


def _ask_index(given: str, request: LockRequest, host: HostView) -> Mapping[str, str]:
    """uv's own lock format (PEP 751) names the sdist of a dist beside its wheels, and no build is needed for it."""
    import tempfile

    from crossgrade.modules import uv

    with tempfile.TemporaryDirectory(prefix="crossgrade-sdist-") as name:
        wanted = Path(name) / "wanted.in"
        wanted.write_text(f"{given}\n", encoding="utf-8")
        argv = [uv.uv_program(), "pip", "compile", "--format", "pylock.toml", "--no-deps", "--quiet", "--no-header"]
        argv += ["--prerelease", "allow", "--python", request.python, *uv.index_options(request), str(wanted)]
        answer = host.run(argv, environment=uv.index_environment(host.environment), timeout=uv.RESOLVE_SECONDS)
    if not answer.succeeded:
        raise uv.resolution_error(LockRequest((given,), request.python), answer)
    stated = _STATED.search(answer.stdout) or _PATH.search(answer.stdout)
    if stated is None:
        raise TaskError(
            f"the index has no source distribution of {given}",
            remedy="Some projects publish wheels only: build from `git` at a tag, or take the wheel.",
        )
    return {"place": stated[1], "sha256": stated[2]}


# ---- fetching


def fetch(sdist: Sdist, context: ApplyContext, work: Path) -> Path:
    """The file, checked against its sha256; downloaded into the store where it is not there. Raises TaskError."""
    if sdist.is_local:
        return _checked(Path(sdist.place), sdist)
    kept = context.store.sources / f"sdist-{sdist.sha256}"
    if kept.is_dir():
        return _checked(kept / sdist.file, sdist)
    new = work / "sdist"
    new.mkdir(mode=0o700)
    download(sdist.place, new / sdist.file, sdist.sha256, context.host.environment, context.progress)
    kept.parent.mkdir(mode=0o700, exist_ok=True)
    new.rename(kept)
    return kept / sdist.file


def _checked(file: Path, sdist: Sdist) -> Path:
    if not file.is_file():
        raise TaskError(f"there is no file {file}", remedy=f"Remove {file.parent} and run again.")
    found = sha256_of(file)
    if found != sdist.sha256:
        raise TaskError(
            f"{file.name} is not what was planned: its sha256 is {found}, not {sdist.sha256}",
            remedy="Somebody has changed it where it comes from. Do not build it before you know who.",
        )
    return file


# ---- unpacking


def unpack(file: Path, place: Path) -> Path:
    """Unpack an archive below `place`; returns the one folder in it, or `place`. Raises TaskError for a hostile one.

    No member may lie outside, by its name, by a link or through one, be a device, or keep setuid (the tarfile module's
    own `data` filter, PEP 706).
    """
    place.mkdir(mode=0o700)
    try:
        if file.name.endswith(".zip"):
            _unzip(file, place)
        else:
            _untar(file, place)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        raise TaskError(
            f"{file.name} is not unpacked: {error}", remedy="Do not build what you cannot trust."
        ) from error
    entries = list(place.iterdir())
    return entries[0] if len(entries) == 1 and entries[0].is_dir() and not entries[0].is_symlink() else place


def _untar(file: Path, place: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise TaskError(
            "this Python cannot unpack archives safely", remedy="Run crossgrade with Python 3.10.12, 3.11.4 or newer."
        )
    with tarfile.open(file) as archive:
        members = archive.getmembers()
        _require_room(file, sum(member.size for member in members), place)
        for member in members:
            _require_inside(member.name)
        archive.extractall(place, members, filter="data")


def _unzip(file: Path, place: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        _require_room(file, sum(member.file_size for member in archive.infolist()), place)
        for name in archive.namelist():
            _require_inside(name)
        archive.extractall(place)  # noqa: S202 - every name was looked at, and zipfile makes no links or devices


def _require_inside(name: str) -> None:
    """An absolute name would be unpacked at another place than it says: whoever wrote it meant harm, or is broken."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name!r} would lie outside of the folder")


def _require_room(file: Path, needed: int, place: Path) -> None:
    free = free_bytes(place)
    if needed > free:
        raise ValueError(f"{file.name} would take {shown_bytes(needed)}, and {shown_bytes(free)} are free")


def stated_version(folder: Path) -> tuple[str, str]:
    """Name and version that the PKG-INFO of an unpacked sdist states; "" each where there is none."""
    try:
        text = (folder / "PKG-INFO").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    head = text.partition("\n\n")[0]
    fields: Sequence[str] = [
        found[1].strip() if (found := re.search(rf"^{name}:(.*)$", head, re.MULTILINE)) else ""
        for name in ("Name", "Version")
    ]
    return fields[0], fields[1]


def text_in(sdist: Sdist, path: str, store: Store) -> str | None:
    """A text file of an archive that is on this machine already, by its path below the archive's one folder."""
    file = Path(sdist.place) if sdist.is_local else store.sources / f"sdist-{sdist.sha256}" / sdist.file
    if not file.is_file() or file.name.endswith(".zip"):
        return None
    try:
        with tarfile.open(file) as archive:
            for member in archive:
                if member.isfile() and member.name.partition("/")[2] == path and member.size < _LARGEST_TEXT:
                    stream = archive.extractfile(member)
                    return stream.read().decode("utf-8", "replace") if stream else None
    except (tarfile.TarError, EOFError, OSError):
        return None  # unpacking says what is wrong with it
    return None
