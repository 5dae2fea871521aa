"""unarchive against Ansible's: the same archives in the same directories, twice, then undone; and hostile ones."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import stat
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.ansible_tasks import run_ansible_modules
from tests.support.laid_files import WHEN, Put, folder, lay
from tests.support.module_host import ModuleHost, plan_module, run_module, snapshot, undo_all

from crossgrade.errors import CrossgradeError
from crossgrade.modules import unarchive
from crossgrade.modules.contract import Change, Skipped, Unchanged
from crossgrade.store.zstandard import zstd

USUAL = (
    folder("a"),
    Put("a/one", b"one\n"),
    Put("a/run", b"#!/bin/sh\n", 0o755),
    folder("a/deep", 0o700),
    Put("a/deep/two", b"two\n", 0o600),
    Put("a/link", link="one"),
    Put("three", b"three\n"),
)
FILES_ONLY = (Put("a/one", b"one\n"), Put("a/deep/two", b"two\n"), Put("three", b"three\n"))
Kind = str


@dataclass(frozen=True)
class Case:
    """An archive of this kind with these members, unpacked over what is there."""

    kind: Kind
    members: tuple[Put, ...]
    before: tuple[Put, ...] = ()
    arguments: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        names = " ".join(member.name for member in self.members[:3])
        before = " ".join(f"{one.name}{one.content!r}{one.mode:o}" for one in self.before)
        return f"{self.kind} {names} over {before} {json.dumps(dict(self.arguments))}"


def case(kind: Kind, members: Sequence[Put] = USUAL, *before: Put, **arguments: Any) -> Case:
    return Case(kind, tuple(members), before, tuple(arguments.items()))


KINDS = ("tar", "tgz", "tbz", "txz", "tzst", "zip")
CASES = [
    *(case(kind) for kind in KINDS),
    *(case(kind, FILES_ONLY) for kind in ("tar", "zip")),
    *(case(kind, USUAL, list_files=True) for kind in KINDS),
    *(case(kind, USUAL, mode="0700") for kind in ("tgz", "zip")),
    *(case(kind, USUAL, mode="u=rwX,g=rX,o=") for kind in ("tgz", "zip")),
    *(case(kind, FILES_ONLY, mode="0700") for kind in ("tgz", "zip")),
    *(case(kind, USUAL, Put("three", b"three\n")) for kind in ("tar", "zip")),
    *(case(kind, USUAL, Put("three", b"other\n")) for kind in ("tar", "zip")),
    *(case(kind, USUAL, Put("three", b"another size\n")) for kind in ("tar", "zip")),
    *(case(kind, USUAL, Put("three", b"three\n", 0o600)) for kind in ("tar", "zip")),
    *(case(kind, USUAL, Put("mine", b"mine\n"), folder("a"), Put("a/mine", b"x")) for kind in ("tar", "zip")),
    case("zip", USUAL, Put("three", b"newer\n", when=WHEN + 1000), keep_newer=True),
    *(case(kind, USUAL, Put("three", b"older\n", when=WHEN - 1000), keep_newer=True) for kind in ("tar", "zip")),
    case("tar", USUAL, folder("three")),
    case("tar", USUAL, folder("a"), folder("a/link")),
    case("tar", USUAL, folder("three"), Put("three/x", b"x")),
    case("tar", USUAL, Put("a", b"x")),
    case("tar", USUAL, Put("a", link="b"), folder("b")),
    *(case(kind, USUAL, Put("a/link", link="three")) for kind in ("tar",)),
    *(case(kind, USUAL, exclude=["three"]) for kind in ("tar", "zip")),
    *(case(kind, USUAL, exclude=["a/one", "a/run"], list_files=True) for kind in ("tar", "zip")),
    *(case(kind, USUAL, exclude=["a/*"]) for kind in ("tar", "zip")),
    case("tar", USUAL, exclude=["a"]),
    case("tar", USUAL, exclude=["one"]),
    case("tar", USUAL, exclude=["deep"]),
    *(case(kind, USUAL, include=["three"]) for kind in ("tar", "zip")),
    *(case(kind, USUAL, include=["a/one", "three"]) for kind in ("tar", "zip")),
    *(case(kind, USUAL, include=["a"]) for kind in ("tar",)),
    *(case(kind, USUAL, include=["nothing"]) for kind in ("tar", "zip")),
    case("zip", USUAL, include=["a/*"]),
    *(case(kind, USUAL, include=["three"], exclude=["a/one"]) for kind in ("tar",)),
    *(case(kind, (folder("."), Put("./x", b"x\n"))) for kind in ("tar",)),
    case("tar", (Put("x", b"x\n"), Put("y", hard="x"))),
    case("tar", (Put("x", b"x\n", 0o4755),)),
    case("tar", (Put("grüße", "süß\n".encode()),)),
    case("tar", (Put("with space", b"x"), Put("with'quote", b"x"), Put("-dash", b"x"))),
    case("zip", (Put("with space", b"x"), Put("with'quote", b"x"))),
    case("tar", (Put("empty"),)),
    case("zip", (Put("empty"),)),
    case("text"),
    case("tar", USUAL, dest="missing"),
    case("tar", USUAL, src="missing"),
]

# Different on purpose: Ansible unpacks these in every run.
SETTLED = [
    case("tar", USUAL, Put("three", b"newer\n", when=WHEN + 1000), keep_newer=True),
    case("tar", (Put("x", b"x\n"), Put("x", b"later\n"))),
]

# Different on purpose: of such an archive nothing is unpacked.
HOSTILE: list[tuple[Kind, tuple[Put, ...], tuple[Put, ...]]] = [
    ("tar", (Put("../out", b"x"),), ()),
    ("tar", (Put("a/../../out", b"x"),), ()),
    ("tar", (Put("/out", b"x"),), ()),
    ("zip", (Put("../out", b"x"),), ()),
    ("zip", (Put("/out", b"x"),), ()),
    ("tar", (Put("l", link="/etc"), Put("l/out", b"x")), ()),
    ("tar", (Put("l", link=".."), Put("l/out", b"x")), ()),
    ("tar", (Put("l", link="/etc/passwd"),), ()),
    ("tar", (Put("l", link="../../x"),), ()),
    (
        "tar",
        (
            folder("a"),
            Put("a/l", link="../.."),
        ),
        (),
    ),
    (
        "tar",
        (
            Put("a", link="."),
            Put("b", link="a/.."),
        ),
        (),
    ),
    ("tar", (folder("d"), Put("d/up", link=".."), Put("l", link="d/up/..")), ()),
    ("tar", (Put("x", hard="/etc/passwd"),), ()),
    ("tar", (Put("x", hard="../outside"),), ()),
    ("tar", (Put("x", hard="nothing"),), ()),
    ("tar", (Put("x", hard="l/secret"),), (Put("l", link="../outside"),)),
    ("tar", (Put("l", link="l2"), Put("l2", link="l")), ()),
    ("zip", (Put("l", link="/etc/passwd"),), ()),
    ("zip", (Put("l", link=".."), Put("l/out", b"x")), ()),
    ("tar", (Put("l/out", b"x"),), (Put("l", link="../outside"),)),
    ("zip", (Put("l/out", b"x"),), (Put("l", link="../outside"),)),
    ("tar", (Put("l", b"x"), Put("l/out", b"x")), ()),
]


def archive(kind: Kind, members: Sequence[Put]) -> bytes:
    if kind == "text":
        return b"no archive at all\n"
    buffer = io.BytesIO()
    if kind == "zip":
        _zip(buffer, members)
        return buffer.getvalue()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member in members:
            tar.addfile(_info(member), io.BytesIO(member.content))
    packers: dict[Kind, Callable[[bytes], bytes]] = {
        "tgz": lambda data: gzip.compress(data, mtime=0),
        "tbz": bz2.compress,
        "txz": lzma.compress,
        "tzst": zstd.compress,
    }
    return packers.get(kind, bytes)(buffer.getvalue())


def _info(member: Put) -> tarfile.TarInfo:
    info = tarfile.TarInfo(member.name)
    info.mode, info.mtime, info.uid, info.gid = member.mode, member.when, os.geteuid(), os.getegid()
    if member.name.endswith("/"):
        info.type = tarfile.DIRTYPE
    elif member.link:
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, member.link, 0o777
    elif member.hard:
        info.type, info.linkname = tarfile.LNKTYPE, member.hard
    else:
        info.size = len(member.content)
    return info


def _zip(buffer: io.BytesIO, members: Sequence[Put]) -> None:
    with zipfile.ZipFile(buffer, "w") as packed:
        for member in members:
            info = zipfile.ZipInfo(member.name, time.localtime(member.when)[:6])
            kind = stat.S_IFDIR if member.name.endswith("/") else stat.S_IFLNK if member.link else stat.S_IFREG
            info.external_attr = (kind | (0o777 if member.link else member.mode)) << 16
            info.create_system = 3
            packed.writestr(info, member.link.encode() if member.link else member.content)


def prepared(one: Case, where: Path) -> dict[str, Any]:
    """The arguments of the task, for the directory that is now there."""
    place = where / "place"
    place.mkdir(parents=True)
    for item in one.before:
        lay(item, place)
    (where / "archive").write_bytes(archive(one.kind, one.members))
    arguments = dict(one.arguments)
    source = where / arguments.pop("src", "archive")
    target = place / arguments.pop("dest", "")
    return {"src": str(source), "dest": str(target), "remote_src": True, **arguments}


def tree(place: Path) -> dict[str, tuple[Any, ...]]:
    """Type and mode, number of names, content, and of files the time in seconds.

    The times of directories are not compared: Ansible sets those of directories that were there before too. Those of
    symlinks are not: unzip does not set them.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(place.rglob("*")):
        status = path.lstat()
        content: bytes | str = b""
        if path.is_symlink():
            content = os.readlink(path)  # noqa: PTH115 - as it was written
        elif path.is_file():
            content = path.read_bytes()
        when = int(status.st_mtime) if stat.S_ISREG(status.st_mode) else 0
        names = status.st_nlink if path.is_file() else 0
        found[str(path.relative_to(place))] = (oct(status.st_mode), status.st_uid, when, names, content)
    return found


def told(values: dict[str, Any], where: Path) -> dict[str, Any]:
    found: dict[str, Any]
    found = {name: values[name] for name in ("handler", "files", "mode", "owner", "state", "uid") if name in values}
    for name in ("dest", "src"):
        if name in values:
            found[name] = str(values[name]).replace(str(where), "").rstrip("/")
    return found


@dataclass(frozen=True)
class Done:
    """What came of a task, and of the same task once more."""

    failed: bool
    changed: bool
    values: dict[str, Any]
    files: dict[str, tuple[Any, ...]]
    again: bool


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(scope="module")
def ansible(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    where = tmp_path_factory.mktemp("ansible")
    before = os.umask(0o022)
    try:
        every = [*CASES, *SETTLED]
        tasks = [("unarchive", prepared(one, where / str(number))) for number, one in enumerate(every)]
        results = run_ansible_modules(tasks, where)
        trees = [tree(where / str(number) / "place") for number in range(len(every))]
        again = run_ansible_modules(tasks, where)
    finally:
        os.umask(before)
    return {
        one.name: Done(
            bool(result.get("failed")),
            result.get("changed", False),
            {} if result.get("failed") else told(result, where / str(number)),
            files,
            second.get("changed", False),
        )
        for number, (one, result, files, second) in enumerate(zip(every, results, trees, again, strict=True))
    }


def do(one: Case, where: Path) -> Done:
    """Plan it, which must change nothing; do it, which must come out as planned; undo it; and do it twice."""
    task, place = prepared(one, where), where / "place"
    before = snapshot(place)
    host = ModuleHost(where)
    try:
        planned = plan_module(unarchive.MODULE, task, host.planning())
        assert snapshot(place) == before, "a plan changed something"
        outcome = run_module(unarchive.MODULE, task, host)
    except CrossgradeError:
        assert snapshot(place) == before, "a task that failed changed something"
        return Done(True, False, {}, tree(place), False)
    changed = outcome.changed is not False
    assert changed == isinstance(planned, Change), "the plan said something else"
    after = tree(place)
    undo_all(unarchive.MODULE, host)
    assert snapshot(place) == before, "undo left something"
    undo_all(unarchive.MODULE, host)
    assert snapshot(place) == before, "undoing twice does more"
    host.steps.clear()
    again = run_module(unarchive.MODULE, task, host)
    assert tree(place) == after
    second = run_module(unarchive.MODULE, task, ModuleHost(where))
    return Done(False, changed, told(dict(again.values), where), after, second.changed is not False)


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_the_same_files_and_the_same_result(one: Case, ansible: dict[str, Done], tmp_path: Path) -> None:
    expected = ansible[one.name]
    found = do(one, tmp_path)
    assert (found.failed, found.changed, found.again) == (expected.failed, expected.changed, expected.again)
    if not found.failed:  # a failed one changes nothing here
        assert found.files == expected.files
        assert found.values == expected.values


@pytest.mark.parametrize("one", SETTLED, ids=lambda one: one.name)
def test_a_second_run_changes_nothing(one: Case, ansible: dict[str, Done], tmp_path: Path) -> None:
    expected = ansible[one.name]
    found = do(one, tmp_path)
    assert found.files == expected.files
    assert (found.changed, found.again) == (expected.changed, False)


def test_directories_get_the_times_of_the_archive(tmp_path: Path) -> None:
    do(Case("tar", USUAL), tmp_path)
    assert {int((tmp_path / "place" / name).stat().st_mtime) for name in ("a", "a/deep")} == {WHEN}


def test_where_creates_exists_nothing_is_unpacked(tmp_path: Path) -> None:
    one = Case("tar", USUAL, (Put("there", b"x"),))
    task = prepared(one, tmp_path)
    planned = plan_module(unarchive.MODULE, {**task, "creates": str(tmp_path / "place/there")}, ModuleHost(tmp_path))
    assert isinstance(planned, Skipped)
    assert planned.values["msg"] == f"skipped, since {tmp_path}/place/there exists"
    done = run_module(unarchive.MODULE, {**task, "creates": str(tmp_path / "nothing")}, ModuleHost(tmp_path))
    assert done.changed is not False


@pytest.mark.parametrize(("kind", "members", "before"), HOSTILE)
def test_nothing_leaves_the_directory(
    kind: Kind, members: tuple[Put, ...], before: tuple[Put, ...], tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_bytes(b"secret")
    found = do(Case(kind, members, before), tmp_path)
    assert found.failed
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["secret"]
    assert (tmp_path / "outside/secret").stat().st_nlink == 1
    assert not os.path.lexists(tmp_path / "out")


def test_a_damaged_archive_changes_nothing(tmp_path: Path) -> None:
    for kind in KINDS:
        whole = archive(kind, USUAL)
        if kind == "tar":  # which ends with zeros, whose lack nobody notices
            whole = whole.rstrip(b"\0")[:-700]
        broken = whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 255]) + whole[len(whole) // 2 + 1 :]
        if kind == "tar":
            broken = whole.replace(b"a/run", b"a/ran")  # in its header, which has a checksum
        if kind == "zip":
            broken = whole.replace(b"three\n", b"thrae\n")
        for number, cut in enumerate((whole[: len(whole) // 2], whole[:-30], broken)):
            where = tmp_path / f"{kind}{number}"
            one = Case(kind, USUAL)
            task = prepared(one, where)
            (where / "archive").write_bytes(cut)
            with pytest.raises(CrossgradeError):
                run_module(unarchive.MODULE, task, ModuleHost(where))
            assert not list((where / "place").iterdir())


def test_a_plan_knows_an_archive_that_an_earlier_task_copies(tmp_path: Path) -> None:
    one = Case("tgz", USUAL)
    task = prepared(one, tmp_path)
    host = ModuleHost(tmp_path)
    planning = host.planning()
    copy = {"src": task["src"], "dest": str(tmp_path / "copied"), "remote_src": True}
    from crossgrade.modules import copy as copy_module

    plan_module(copy_module.MODULE, copy, planning)
    planned = plan_module(unarchive.MODULE, {**task, "src": str(tmp_path / "copied")}, planning)
    assert isinstance(planned, Change)
    assert planned.values_known
    assert planned.values["handler"] == "TgzArchive"
    again = plan_module(unarchive.MODULE, {**task, "src": str(tmp_path / "copied")}, planning)
    assert isinstance(again, Unchanged)


def test_an_address_is_refused(tmp_path: Path) -> None:
    task = {**prepared(Case("tgz", USUAL), tmp_path), "src": "https://example.com/x.tgz"}
    with pytest.raises(CrossgradeError, match="is an address"):
        run_module(unarchive.MODULE, task, ModuleHost(tmp_path))
