"""uri and wait_for against Ansible's: the same requests to one server, the same ports and files."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.ansible_tasks import run_ansible_modules
from tests.support.file_server import file_server
from tests.support.module_host import ModuleHost, run_module, snapshot

from crossgrade.errors import CrossgradeError
from crossgrade.modules import load_module
from crossgrade.modules.contract import Outcome

LOGIN: dict[str, Any] = {"url_username": "user", "url_password": "secret"}


@dataclass(frozen=True)
class Case:
    """A task; `SERVER`, `PLACE`, `OPEN` (a port that is) and `CLOSED` (one that is not) are filled in."""

    module: str
    arguments: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        return f"{self.module} {json.dumps(dict(self.arguments))}"


def uri(path: str, **arguments: Any) -> Case:
    return Case("uri", (("url", f"SERVER{path}"), *arguments.items()))


def wait(**arguments: Any) -> Case:
    return Case("wait_for", tuple({"timeout": 1, **arguments}.items()))


CASES = [
    uri("/file"),
    uri("/file", return_content=True),
    uri("/echo"),
    uri("/echo", headers={"X-One": "1"}, http_agent="mine"),
    uri("/broken-json", return_content=True),
    uri("/cookie"),
    uri("/nowhere"),
    uri("/nowhere", status_code=404),
    uri("/nowhere", status_code=[200, 404], return_content=True),
    uri("/file", status_code="201"),
    uri("/away", return_content=True),
    uri("/away", follow_redirects="none", status_code=302),
    uri("/away", follow_redirects="none"),
    uri("/away", follow_redirects="all"),
    uri("/away", method="POST", body="x", follow_redirects="safe", status_code=302),
    uri("/gzip", return_content=True),
    uri("/login"),
    uri("/login", **LOGIN),
    uri("/login", user="user", password=LOGIN["url_password"], force_basic_auth=True),
    uri("/login", **{**LOGIN, "url_password": "wrong"}),
    uri("/login", **LOGIN, status_code=401),
    uri("/any", method="POST", body="text", status_code=201),
    uri("/any", method="PUT", body={"a": [1, None]}, body_format="json", status_code=201),
    uri("/any", method="POST", body=[1, 2], body_format="json", status_code=201),
    uri("/any", method="POST", body='{"a": 1}', body_format="json", status_code=201),
    uri("/any", method="POST", body={"a": "1 2", "b": ["x", "y"]}, body_format="form-urlencoded", status_code=201),
    uri("/any", method="POST", body=[["a", "1"], ["b", "ü"]], body_format="form-urlencoded", status_code=201),
    uri("/any", method="POST", body="a=1", body_format="form-urlencoded", status_code=201),
    uri("/any", method="POST", body="x", headers={"Content-Type": "text/x"}, status_code=201),
    uri("/any", method="POST", src="PLACE/file", remote_src=True, status_code=201),
    uri("/any", method="post", status_code=201),
    uri("/any", method="NOT ONE"),
    uri("/file", method="HEAD"),
    uri("/file", creates="PLACE/file"),
    uri("/file", creates="PLACE/nothing"),
    uri("/file", removes="PLACE/file"),
    uri("/file", removes="PLACE/nothing"),
    uri("/slow", timeout=1),
    Case("uri", (("url", "http://127.0.0.1:CLOSED/"),)),
    wait(port="OPEN"),
    wait(port="OPEN", host="localhost"),
    wait(port="CLOSED"),
    wait(port="CLOSED", msg="not there"),
    wait(port="CLOSED", state="stopped"),
    wait(port="CLOSED", state="absent"),
    wait(port="OPEN", state="stopped"),
    wait(port="CLOSED", state="drained"),
    wait(port="OPEN", state="drained"),
    wait(path="PLACE/file"),
    wait(path="PLACE/file", state="present"),
    wait(path="PLACE/file", state="absent"),
    wait(path="PLACE/nothing", state="absent"),
    wait(path="PLACE/nothing"),
    wait(path="PLACE/file", search_regex="content"),
    wait(path="PLACE/file", search_regex=r"^(\w+) (?P<number>\d+)$"),
    wait(path="PLACE/file", search_regex="nothing"),
    wait(path="PLACE/file", state="drained"),
    wait(path="PLACE/file", port="OPEN"),
    wait(port="OPEN", exclude_hosts=["127.0.0.1"]),
    wait(port="OPEN", state="drained", active_connection_states=["NONSENSE"]),
    wait(state="drained"),
    wait(),
]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    place = tmp_path_factory.mktemp("place")
    (place / "file").write_text("content\nnumber 42\nend\n", encoding="utf-8")
    with file_server() as server, socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody else gets it, and nobody listens
        yield {
            "SERVER": server,
            "PLACE": str(place),
            "OPEN": listening.getsockname()[1],
            "CLOSED": bound.getsockname()[1],
        }


def filled(one: Case, words: dict[str, Any]) -> dict[str, Any]:
    found = dict(one.arguments)
    for name, value in found.items():
        for word, meant in words.items():
            if isinstance(found[name], str) and word in found[name]:
                found[name] = meant if value == word else found[name].replace(word, str(meant))
    return found


@pytest.fixture(scope="module")
def ansible(words: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    tasks = [(one.module, filled(one, words)) for one in CASES]
    results = run_ansible_modules(tasks, tmp_path_factory.mktemp("results"))
    return dict(zip((one.name for one in CASES), results, strict=True))


NAMES = {
    "uri": (
        *("status", "url", "json", "content", "redirected", "cookies", "cookies_string"),
        *("location", "content_type", "content_length", "x_mine", "stdout"),
    ),
    "wait_for": ("state", "port", "path", "search_regex", "match_groups", "match_groupdict"),
}


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_the_same_answer(one: Case, words: dict[str, Any], ansible: dict[str, Any], tmp_path: Path) -> None:
    expected = ansible[one.name]
    before = snapshot(Path(words["PLACE"]))
    try:
        outcome = run_module(load_module(one.module), filled(one, words), ModuleHost(tmp_path))
    except CrossgradeError:
        outcome = Outcome(failed=True)
        assert expected.get("failed"), expected
        return
    assert outcome.failed == bool(expected.get("failed")), (outcome.message, expected)
    assert snapshot(Path(words["PLACE"])) == before
    assert outcome.changed in (None, False)
    told = {name: expected[name] for name in NAMES[one.module] if expected.get(name) is not None}
    assert {name: outcome.values.get(name) for name in told} == told
