"""cuda_toolkit from a runfile: a script that takes the installer's options and lays out a real toolkit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.support.module_host import ModuleHost, plan_module, run_module, snapshot
from tests.support.runfiles import write_runfile
from tests.support.store_host import StoreHost, undo_steps
from tests.support.toolkits import toolkits

from crossgrade.errors import TaskError
from crossgrade.modules import cuda_toolkit, downloading, toolkit_runfile
from crossgrade.modules.contract import Change, Unchanged
from crossgrade.store.gc import collect

TOOLKIT = cuda_toolkit.MODULE


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreHost:
    monkeypatch.setattr(toolkit_runfile, "LOCAL_CUDA", tmp_path / "cuda")
    return StoreHost(tmp_path)


def arguments_of(tmp_path: Path, more: str = "", **others: object) -> dict[str, object]:
    runfile = tmp_path / "cuda_13.0.2_linux.run"
    checksum = write_runfile(runfile, toolkits().cuda_13_0, more)
    return {"method": "runfile", "version": "13.0", "runfile": str(runfile), "sha256": checksum, **others}


def test_a_runfile_is_installed_into_the_store_and_proved(host: StoreHost, tmp_path: Path) -> None:
    arguments = arguments_of(tmp_path)
    planned = plan_module(TOOLKIT, arguments, host.planning())
    assert isinstance(planned, Change)
    assert all(each.bytes > 0 for each in planned.space)
    outcome = run_module(TOOLKIT, arguments, host)
    assert outcome.values == planned.values
    assert outcome.values["proved"] == ["12.0f"]
    home = Path(str(outcome.values["cuda_home"]))
    assert home.parent.parent == host.store.root / "toolkits"
    options = (home / "options.txt").read_text().split()
    assert options[:3] == ["--silent", "--toolkit", f"--toolkitpath={home}"]
    assert "--driver" not in options
    assert list(host.store.temporary.iterdir()) == []
    assert undo_steps(TOOLKIT, host) == ["", ""], "a complete toolkit is shared and stays"
    later = host.in_run("later")
    (tmp_path / "cuda_13.0.2_linux.run").unlink()
    assert isinstance(plan_module(TOOLKIT, arguments, later), Unchanged), "the file is not needed any more"


def test_a_place_outside_of_the_store_is_emptied_by_the_undo(host: StoreHost, tmp_path: Path) -> None:
    place = tmp_path / "opt" / "cuda-13.0"
    arguments = arguments_of(tmp_path, path=str(place), prove_for=[])
    run_module(TOOLKIT, arguments, host)
    assert (place / "bin" / "nvcc").is_file()
    assert undo_steps(TOOLKIT, host)[0] == f"removed {place}"
    assert not place.exists()


def test_a_place_with_something_in_it_is_left_alone(host: StoreHost, tmp_path: Path) -> None:
    place = tmp_path / "opt"
    place.mkdir()
    (place / "theirs").touch()
    with pytest.raises(TaskError, match="is not empty and holds no toolkit"):
        plan_module(TOOLKIT, arguments_of(tmp_path, path=str(place)), host)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("echo no space left >&2; exit 1", "the runfile failed .exit code 1.: no space left"),
        ('rm "$path/bin/nvcc"', "has no program bin/nvcc"),
        ('rm -r "$path/nvvm"', r"does not compile .*(?s:.*)The toolkit lacks: nvvm/bin/cicc .nvidia-nvvm brings it."),
        ('sed -i s/13000/13050/ "$path/include/cuda_runtime_api.h"', "mixes nvcc 13.0.88 with headers of CUDA 13.5"),
    ],
)
def test_a_runfile_that_does_not_make_a_toolkit(host: StoreHost, tmp_path: Path, more: str, reason: str) -> None:
    with pytest.raises((TaskError, ValueError), match=reason):
        run_module(TOOLKIT, arguments_of(tmp_path, more), host)
    undo_steps(TOOLKIT, host)
    assert list((host.store.root / "toolkits").iterdir()) == []
    assert list(host.store.temporary.iterdir()) == []


def test_another_file_than_the_checksum_says_is_not_run(host: StoreHost, tmp_path: Path) -> None:
    arguments = arguments_of(tmp_path, f"touch {tmp_path}/was-run")
    with pytest.raises(TaskError, match="it is not run"):
        run_module(TOOLKIT, {**arguments, "sha256": "0" * 64}, host)
    assert not (tmp_path / "was-run").exists()
    with pytest.raises(TaskError, match=r"needs `runfile` .* and its `sha256`"):
        plan_module(TOOLKIT, {**arguments, "sha256": None}, host)


def test_a_link_that_the_installer_turns_is_put_back(host: StoreHost, tmp_path: Path) -> None:
    (tmp_path / "cuda-12.8").mkdir()
    (tmp_path / "cuda").symlink_to("cuda-12.8")
    arguments = arguments_of(tmp_path, f'ln -sfn "$path" {tmp_path}/cuda', prove_for=[])
    run_module(TOOLKIT, arguments, host)
    assert (tmp_path / "cuda").readlink() == Path("cuda-12.8")
    (tmp_path / "cuda").unlink()
    run_module(TOOLKIT, {**arguments, "path": str(tmp_path / "other")}, host.in_run("later"))
    assert not (tmp_path / "cuda").is_symlink(), "a link that the installer made is not kept either"


# ---- from the network


class _Server(BaseHTTPRequestHandler):
    """Serves one file with ranges, and breaks off after `break_after` bytes of the first answer."""

    def __init__(self, content: bytes, breaks: list[int], ranges: list[str], *rest: object) -> None:
        self.content, self.breaks, self.ranges = content, breaks, ranges
        super().__init__(*rest)  # type: ignore[arg-type]  # as socketserver hands them over

    def do_HEAD(self) -> None:
        self._head(200, len(self.content))

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "")
        self.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        body = self.content[start:]
        self._head(206 if asked else 200, len(body))
        self.wfile.write(body[: self.breaks.pop()] if self.breaks else body)

    def _head(self, status: int, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Nobody reads it."""


@contextmanager
def served(content: bytes, breaks: list[int], ranges: list[str]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Server, content, breaks, ranges))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/cuda.run"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_download_that_breaks_off_is_gone_on_with(host: StoreHost, tmp_path: Path) -> None:
    arguments = arguments_of(tmp_path, prove_for=[])
    content = Path(str(arguments["runfile"])).read_bytes()
    ranges: list[str] = []
    with served(content, [100], ranges) as url:
        run_module(TOOLKIT, {**arguments, "runfile": url}, host)
    assert ranges == ["", "bytes=100-"]
    assert list((host.store.root / "downloads").iterdir()) == [], "the file is not kept once it is installed"


def test_what_a_killed_run_had_downloaded_is_used(host: ModuleHost, tmp_path: Path) -> None:
    arguments = arguments_of(tmp_path, prove_for=[])
    content = Path(str(arguments["runfile"])).read_bytes()
    folder = host.store.root / "downloads"
    folder.mkdir()
    part = folder / f"{arguments['sha256']}.part"
    part.write_bytes(content[:77])
    ranges: list[str] = []
    with served(content, [], ranges) as url:
        run_module(TOOLKIT, {**arguments, "runfile": url}, host)
    assert ranges == ["bytes=77-"]


def test_gc_removes_what_was_never_used(host: StoreHost) -> None:
    folder = host.store.root / "downloads"
    folder.mkdir()
    (folder / "of-an-old-plan.part").write_bytes(bytes(1000))
    assert collect(host.store, predecessor=None, turns=(), keep=2).bytes == 1000
    assert not folder.exists()


def test_a_beginning_of_another_file_is_dropped(tmp_path: Path) -> None:
    checksum = write_runfile(tmp_path / "file", Path("/nowhere"))
    content = (tmp_path / "file").read_bytes()
    (tmp_path / "target.part").write_bytes(b"another")
    ranges: list[str] = []
    messages: list[str] = []
    with served(content, [], ranges) as url:
        downloading.download(url, tmp_path / "target", checksum, {}, messages.append)
    assert ranges == ["bytes=7-", ""]
    assert (tmp_path / "target").read_bytes() == content


def test_a_download_with_another_checksum_is_not_kept(tmp_path: Path) -> None:
    messages: list[str] = []
    with served(b"hostile", [], []) as url, pytest.raises(TaskError, match="it is not used"):
        downloading.download(url, tmp_path / "target", "0" * 64, {}, messages.append)
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_nobody_answers_at(host: StoreHost, tmp_path: Path) -> None:
    with served(b"", [], []) as url:
        pass
    before = snapshot(tmp_path)
    arguments = {"method": "runfile", "version": "13.0", "runfile": url, "sha256": "0" * 64}
    with pytest.raises(TaskError, match=r"cannot be downloaded: .*refused"):
        plan_module(TOOLKIT, arguments, host.planning())
    assert snapshot(tmp_path) == before
