"""uri and wait_for against real servers and ports on loopback."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.support.module_host import ModuleHost, plan_module, run_module

from crossgrade.modules import uri, wait_for
from crossgrade.modules.contract import Change, Outcome


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Quiet."""

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/json":
            self.answer(200, b'{"ready": true}', Content_Type="application/json; charset=utf-8", X_Model_Name="m")
        elif path == "/problem":
            self.answer(503, b'{"why": "loading"}', Content_Type="application/problem+json")
        elif path == "/broken":
            self.answer(200, b"{", Content_Type="application/json")
        elif path == "/latin":
            self.answer(200, "größer".encode("latin-1"), Content_Type="text/plain; charset=latin-1")
        elif path == "/cookies":
            self.send_response(200)
            self.send_header("Set-Cookie", "a=1")
            self.send_header("Set-Cookie", "b=2")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path == "/away":
            self.answer(302, Location="/json")
        elif path == "/echo":
            self.answer(200, json.dumps({"path": self.path, **self.headers}).encode(), Content_Type="application/json")
        elif path == "/slow":
            time.sleep(1)
            with suppress(BrokenPipeError):  # the client did not wait
                self.answer(200)
        elif path == "/cut":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
            self.close_connection = True
        else:
            self.answer(404, b"no")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path == "/away":
            self.answer(302, Location="/json")
            return
        said = {"body": body.decode(), "type": self.headers.get("Content-Type", "")}
        self.answer(201, json.dumps(said).encode(), Content_Type="application/json")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


@pytest.fixture
def host(tmp_path: Path) -> ModuleHost:
    return ModuleHost(tmp_path)


def ask(host: ModuleHost, url: str, **arguments: Any) -> Outcome:
    return run_module(uri.MODULE, {"url": url, **arguments}, host)


def test_uri_returns_what_ansible_returns(host: ModuleHost, server: str) -> None:
    outcome = ask(host, f"{server}/json")
    values = dict(outcome.values)
    assert values.pop("date")
    assert values.pop("server")
    assert values == {
        "status": 200,
        "url": f"{server}/json",
        "redirected": False,
        "elapsed": 0,
        "msg": "OK (15 bytes)",
        "json": {"ready": True},
        "content_type": "application/json; charset=utf-8",
        "content_length": "15",
        "x_model_name": "m",
        "cookies": {},
        "cookies_string": "",
    }
    assert ask(host, f"{server}/json", return_content=True).values["content"] == '{"ready": true}'
    assert ask(host, f"{server}/latin", return_content=True).values["content"] == "größer"
    assert "json" not in ask(host, f"{server}/broken").values
    assert ask(host, f"{server}/cookies").values["cookies"] == {"a": "1", "b": "2"}


def test_uri_judges_the_status(host: ModuleHost, server: str) -> None:
    failed = ask(host, f"{server}/problem")
    assert failed.failed
    assert failed.values["status"] == 503
    assert failed.values["json"] == {"why": "loading"}
    assert failed.values["msg"] == "Status code was 503 and not [200]: HTTP Error 503: Service Unavailable"
    assert not ask(host, f"{server}/problem", status_code=[200, 503]).failed
    assert not ask(host, f"{server}/nothing", status_code="404").failed


def test_uri_sends_bodies(host: ModuleHost, server: str) -> None:
    posted = ask(host, f"{server}/x", method="post", body={"a": 1}, body_format="json", status_code=201)
    assert posted.values["json"] == {"body": '{"a": 1}', "type": "application/json"}
    form = ask(host, f"{server}/x", method="POST", body={"a": "b c"}, body_format="form-urlencoded", status_code=201)
    assert form.values["json"] == {"body": "a=b+c", "type": "application/x-www-form-urlencoded"}
    (host.playbook_directory / "body").write_text("from a file", encoding="utf-8")
    assert ask(host, f"{server}/x", method="POST", src="body", status_code=201).values["json"]["body"] == "from a file"


def test_uri_follows_redirects_as_told(host: ModuleHost, server: str) -> None:
    followed = ask(host, f"{server}/away")
    assert (followed.values["status"], followed.values["redirected"]) == (200, True)
    assert followed.values["url"] == f"{server}/json"
    stayed = ask(host, f"{server}/away", follow_redirects="none", status_code=302)
    assert stayed.values["location"] == f"{server}/json"
    assert ask(host, f"{server}/away", method="POST", status_code=302).values["status"] == 302
    assert ask(host, f"{server}/away", method="POST", follow_redirects="all").values["status"] == 200


def test_uri_sends_headers_login_and_the_address_as_it_stands(host: ModuleHost, server: str) -> None:
    outcome = ask(
        host,
        f"{server}/echo?q=a%2Fb",
        headers={"X-Number": 5},
        url_username="ann",
        url_password="s",  # noqa: S106 - of nobody
        http_agent="me",
    )
    echoed = outcome.values["json"]
    assert echoed["path"] == "/echo?q=a%2Fb"
    assert (echoed["X-Number"], echoed["User-Agent"]) == ("5", "me")
    assert echoed["Authorization"] == "Basic YW5uOnM="
    inside = ask(host, server.replace("//", "//ann:s@") + "/echo")
    assert inside.values["json"]["Authorization"] == "Basic YW5uOnM="
    assert inside.values["url"] == f"{server}/echo"


def test_uri_that_gets_no_answer(host: ModuleHost, server: str) -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        refused = ask(host, f"http://127.0.0.1:{unused.getsockname()[1]}/")
    assert refused.failed
    assert refused.values["status"] == -1
    assert refused.values["msg"].startswith("Status code was -1 and not [200]: Request failed: ")
    slow = ask(host, f"{server}/slow", timeout=0.2)
    assert (slow.values["status"], slow.failed) == (-1, True)
    assert "within 0.2 s" in slow.message
    assert ask(host, f"{server}/cut", return_content=True).failed


def test_uri_is_not_sent_in_a_plan(host: ModuleHost) -> None:
    planned = plan_module(uri.MODULE, {"url": "http://ann:secret@127.0.0.1:9/"}, host.planning())
    assert isinstance(planned, Change)
    assert "secret" not in planned.summary
    assert not planned.values_known


# ---- wait_for


@contextmanager
def listening(greeting: bytes = b"", *, after: float = 0.0) -> Iterator[int]:
    """A port that opens after some seconds and greets everybody."""
    with closing(socket.socket()) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))

        def serve() -> None:
            time.sleep(after)
            listener.listen()
            listener.settimeout(0.05)
            while not stop.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with connection, suppress(ConnectionError):  # those who only knock are gone by now
                    connection.sendall(greeting)

        stop = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        stop.set()
        thread.join()


def wait(host: ModuleHost, **arguments: Any) -> Outcome:
    return run_module(wait_for.MODULE, {"timeout": 5, "sleep": 0.05, **arguments}, host)


def test_wait_for_a_port_that_opens_later(host: ModuleHost) -> None:
    with listening(after=0.3) as port:
        outcome = wait(host, port=port)
    assert not outcome.failed
    assert outcome.values == {
        "state": "started",
        "port": port,
        "path": None,
        "search_regex": None,
        "match_groups": [],
        "match_groupdict": {},
        "elapsed": 0,
    }
    assert any(f"127.0.0.1:{port} is open" in message for message in host.messages)


def test_wait_for_what_a_port_says(host: ModuleHost) -> None:
    with listening(b"220 mail ready\r\n") as port:
        assert wait(host, port=port, search_regex=r"(\d+) mail").values["match_groups"] == ["220"]
        assert wait(host, port=port, search_regex="news", timeout=0.3).failed


def test_wait_for_a_port_to_close(host: ModuleHost) -> None:
    with listening() as port:
        late = wait(host, port=port, state="stopped", timeout=0.3)
        assert late.failed
        assert f"127.0.0.1:{port} is closed" in late.message
    assert not wait(host, port=port, state="stopped").failed
    assert wait(host, port=port, timeout=0.2).failed


def test_wait_for_a_port_to_drain(host: ModuleHost) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        assert not wait(host, port=port, state="drained").failed
        client = socket.create_connection(("127.0.0.1", port))
        connection, _ = listener.accept()
        with closing(client), closing(connection):
            only_open = {"active_connection_states": ["ESTABLISHED"]}
            assert wait(host, port=port, state="drained", timeout=0.2, **only_open).failed
            assert not wait(host, port=port, state="drained", exclude_hosts=["127.0.0.1"], **only_open).failed
            client.close()
            connection.close()
            assert not wait(host, port=port, state="drained", **only_open).failed
