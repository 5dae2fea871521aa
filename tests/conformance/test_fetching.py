"""get_url against Ansible's: the same tasks on the same files, twice, then undone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.ansible_tasks import run_ansible_modules
from tests.support.file_server import CONTENT, MODIFIED, SHA1, SHA256, file_server
from tests.support.module_host import ModuleHost, plan_module, run_module, snapshot, undo_all

from crossgrade.errors import CrossgradeError
from crossgrade.modules import get_url
from crossgrade.modules.contract import Change, Unchanged

OLD = "the old file\n"


@dataclass(frozen=True)
class Case:
    """A task: URL (`SERVER`/…), what lies at `dest` before, seconds from the server's date to its own."""

    url: str
    old: str | None = None
    age: int = -1000
    dest: str = "file"
    arguments: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        old = "" if self.old is None else f" over {self.old.strip()!r} {self.age}"
        return f"{self.url} to {self.dest}{old} {json.dumps(dict(self.arguments))}"


def case(url: str, old: str | None = None, age: int = -1000, dest: str = "file", **arguments: Any) -> Case:
    return Case(url, old, age, dest, tuple(arguments.items()))


LOGIN: dict[str, Any] = {"url_username": "user", "url_password": "secret"}
SAME = CONTENT.decode()
CASES = [
    case("/file"),
    case("/file", OLD),
    case("/file", OLD, 1000),
    case("/file", OLD, 1000, force=True),
    case("/file", SAME),
    case("/file", SAME, force=True),
    case("/file", SAME, 1000, force=True, mode="0600"),
    case("/file", OLD, backup=True),
    case("/file", SAME, backup=True),
    case("/file", mode="0600"),
    case("/file", OLD, mode="u=rwx,g=,o="),
    case("/file", OLD, 1000, checksum=f"sha256:{SHA256}"),
    case("/file", SAME, checksum=f"sha256:{SHA256}"),
    case("/file", SAME, checksum=f"sha256:{SHA256}", mode="0600"),
    case("/file", SAME, checksum=f"sha1:{SHA1}", force=True),
    case("/file", checksum=f"SHA256:{SHA256.upper()}"),
    case("/file", checksum=f"sha256: {SHA256}"),
    case("/file", checksum="sha256:" + "0" * 64),
    case("/file", OLD, checksum="sha256:" + "0" * 64),
    case("/file", checksum="sha256:nohex"),
    case("/file", checksum=SHA256),
    case("/file", checksum=f"md17:{SHA256}"),
    case("/file", checksum="sha256:SERVER/sums"),
    case("/file", checksum="sha256:SERVER/binary-sums"),
    case("/file", checksum="sha256:SERVER/dotted-sums"),
    case("/file", checksum="sha256:SERVER/deep-sums"),
    case("/file", checksum="sha256:SERVER/bsd-sums"),
    case("/file", checksum="sha256:SERVER/one-sum"),
    case("/file", checksum="sha256:SERVER/other-sums"),
    case("/file", checksum="sha256:SERVER/wrong-sums"),
    case("/file", checksum="sha256:SERVER/no-sums"),
    case("/file", checksum="sha256:SERVER/nowhere"),
    case("/file", SAME, checksum="sha256:SERVER/sums"),
    case("/file?a=b", dest="."),
    case("/file", SAME, dest="."),
    case("/file", OLD, dest="."),
    case("/file", OLD, 1000, dest="."),
    case("/file", SAME, dest=".", checksum=f"sha256:{SHA256}"),
    case("/named", dest="."),
    case("/climbing", dest="."),
    case("/away", dest="."),
    case("/away"),
    case("/empty"),
    case("/gzip"),
    case("/gzip", decompress=False),
    case("/nowhere"),
    case("/nowhere", OLD),
    case("/cut"),
    case("/slow", timeout=1),
    case("/login"),
    case("/login", **LOGIN),
    case("/login", **{name.removeprefix("url_"): value for name, value in LOGIN.items()}, force_basic_auth=True),
    case("/login", **{**LOGIN, "url_password": "wrong"}),
    case("LOGIN/login"),
    case("/echo", headers={"X-One": "1"}),
    case("/echo", headers={"X-One": "1"}, http_agent="mine"),
    case("/away-to-echo", headers={"X-One": "1"}),
    case("/away-to-echo", headers={"X-One": "1"}, unredirected_headers=["X-One"]),
    case("/file", dest="missing/file"),
    case("/file", tmp_dest="FOLDER"),
    case("/file", tmp_dest="FOLDER/missing"),
    case("DISK/source"),
    case("DISK/source", OLD),
    case("DISK/source", dest="."),
    case("DISK/missing"),
    case("gopher://localhost/file"),
    case("no address"),
]

# Different on purpose.
DIFFERENT = [
    (case("/to-the-disk"), "Ansible's fetches a file of this machine when a server says so"),
]


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with file_server() as address:
        yield address


def prepared(one: Case, folder: Path, server: str) -> dict[str, Any]:
    """The arguments of the task, for the folder as it now is."""
    place = folder / "place"
    place.mkdir(parents=True)
    (folder / "source").write_bytes(CONTENT)
    if one.old is not None:
        path = place / "file"
        path.write_text(one.old, encoding="utf-8")
        path.chmod(0o640)
        os.utime(path, (MODIFIED + one.age, MODIFIED + one.age))
    words = {"SERVER": server, "DISK": f"file://{folder}", "FOLDER": str(folder)}
    words["LOGIN"] = server.replace("//", "//user:secret@")
    url = server + one.url if one.url.startswith("/") else one.url
    task = {"url": url, "dest": str(place / one.dest), **dict(one.arguments)}
    return {name: _filled(value, words) for name, value in task.items()}


def _filled(value: Any, words: dict[str, str]) -> Any:
    for word, meant in words.items():
        value = value.replace(word, meant) if isinstance(value, str) else value
    return value


def tree(place: Path) -> dict[str, tuple[int, bytes]]:
    return {
        re.sub(r"\.\d+\.[-\d]+@[\d:]+~$", ".backup", path.name): (path.stat().st_mode, path.read_bytes())
        for path in place.iterdir()
    }


def told(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What both return of a file that was fetched; what is bound to one of them left out."""
    names = {"status_code", "checksum_dest", "checksum_src", "md5sum", "size", "mode", "state", "owner", "uid", "url"}
    found = {name: values[name] for name in names if values.get(name) is not None}
    # crossgrade leaves the user's name in it
    found["url"] = found["url"].replace(str(folder), "").replace("****:****@", "user:********@")
    found["dest"] = os.path.normpath(str(values["dest"]).replace(str(folder), ""))
    return {**found, "backup": "backup_file" in values}


@dataclass(frozen=True)
class Done:
    """What came of a task, and of the same task once more."""

    failed: bool
    changed: bool = False
    values: dict[str, Any] | None = None
    files: dict[str, tuple[int, bytes]] | None = None
    again: bool = False


@pytest.fixture(scope="module")
def ansible(tmp_path_factory: pytest.TempPathFactory, server: str) -> dict[str, Done]:
    folder = tmp_path_factory.mktemp("ansible")
    before = os.umask(0o022)
    try:
        tasks = [("get_url", prepared(one, folder / str(number), server)) for number, one in enumerate(CASES)]
        results = run_ansible_modules(tasks, folder)
        trees = [tree(folder / str(number) / "place") for number in range(len(CASES))]
        again = run_ansible_modules(tasks, folder)
    finally:
        os.umask(before)
    return {
        one.name: Done(
            bool(result.get("failed")),
            result.get("changed", False),
            {} if result.get("failed") else told(result, folder / str(number)),
            files,
            second.get("changed", False),
        )
        for number, (one, result, files, second) in enumerate(zip(CASES, results, trees, again, strict=True))
    }


def do(one: Case, folder: Path, server: str) -> Done:
    """Plan it, which must change nothing; do it, which must come out as planned; undo it; and do it twice."""
    task, place = prepared(one, folder, server), folder / "place"
    before = snapshot(place)
    host = ModuleHost(folder)
    planned = None
    try:
        planned = plan_module(get_url.MODULE, task, host.planning())
        assert snapshot(place) == before, "a plan changed something"
        outcome = run_module(get_url.MODULE, task, host)
    except CrossgradeError:
        outcome = None
    assert not list(folder.rglob("*.part"))
    if outcome is None or outcome.failed:
        assert snapshot(place) == before, "a task that failed changed something"
        return Done(True, files=tree(place))
    changed = outcome.changed is not False
    assert changed == isinstance(planned, Change), "the plan said something else"
    after = tree(place)
    undo_all(get_url.MODULE, host)
    assert snapshot(place) == before, "undo left something"
    undo_all(get_url.MODULE, host)
    assert snapshot(place) == before, "undoing twice does more"
    host.steps.clear()
    again = run_module(get_url.MODULE, task, host)
    assert tree(place) == after
    second = run_module(get_url.MODULE, task, ModuleHost(folder))
    return Done(False, changed, told(dict(again.values), folder), after, second.changed is not False)


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_the_same_file_and_the_same_result(one: Case, ansible: dict[str, Done], tmp_path: Path, server: str) -> None:
    expected = ansible[one.name]
    found = do(one, tmp_path, server)
    assert (found.failed, found.changed, found.again) == (expected.failed, expected.changed, expected.again)
    assert found.files == expected.files
    if not found.failed:
        assert found.values == expected.values


@pytest.mark.parametrize(("one", "why"), DIFFERENT, ids=lambda value: value.name if isinstance(value, Case) else "")
def test_different_on_purpose(one: Case, why: str, tmp_path: Path, server: str) -> None:
    assert do(one, tmp_path, server) == Done(True, files={}), why


def test_what_changes_between_plan_and_run_is_not_kept(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"one")
    host = ModuleHost(tmp_path)
    (tmp_path / "file").write_bytes(b"old")
    task = get_url.Arguments(url=f"file://{source}", dest=str(tmp_path / "file"))
    planned = get_url.plan(task, get_url.inspect(task, host))
    assert isinstance(planned, Change)
    source.write_bytes(b"two")
    with pytest.raises(CrossgradeError, match="another content than when the plan was made"):
        get_url.apply(task, planned, host)
    assert (tmp_path / "file").read_bytes() == b"old"


def test_no_password_is_shown(tmp_path: Path, server: str) -> None:
    host = ModuleHost(tmp_path)
    url = server.replace("//", "//user:secret@") + "/login"
    task = {"url": url, "dest": str(tmp_path / "file")}
    planned = plan_module(get_url.MODULE, task, host.planning())
    outcome = run_module(get_url.MODULE, task, host)
    assert outcome.changed is not False
    assert "secret" not in f"{planned.summary} {planned.values} {outcome.values} {host.steps} {host.pins}"
    assert isinstance(run_module(get_url.MODULE, task, host).values, dict)
    wrong = {**task, "url": url.replace("secret@", "wrong@"), "force": True}
    refused = run_module(get_url.MODULE, wrong, ModuleHost(tmp_path))
    assert refused.values["status_code"] == 401
    assert refused.failed
    assert "wrong" not in f"{refused.values} {refused.message}"


def test_the_login_of_netrc(tmp_path: Path, server: str) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login user password secret\n", encoding="utf-8")
    (tmp_path / ".netrc").chmod(0o600)
    host = ModuleHost(tmp_path, environment={**os.environ, "HOME": str(tmp_path)})
    task = {"url": f"{server}/login", "dest": str(tmp_path / "file")}
    assert run_module(get_url.MODULE, {**task, "use_netrc": False}, host).failed
    assert not run_module(get_url.MODULE, task, host).failed
    assert isinstance(plan_module(get_url.MODULE, task, host), Unchanged)
