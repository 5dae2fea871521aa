"""Resolving and installing from real indexes over http, by real uv, as a user does it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import PROGRAM, Answer, crossgrade
from tests.support.package_index import Index, serving
from tests.support.tiny_wheels import tiny_venv, tiny_wheel, uv_pip

SECRET = "correct-horse-battery"  # noqa: S105 - of a server that the test makes
BACKEND = """
import zipfile
from pathlib import Path

METADATA = "Metadata-Version: 2.1\\nName: tiny-git\\nVersion: 1.5\\n"


def build_wheel(folder, settings=None, metadata=None):
    name = "tiny_git-1.5-py3-none-any.whl"
    wheel = "Wheel-Version: 1.0\\nGenerator: tests\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    with zipfile.ZipFile(Path(folder) / name, "w") as archive:
        archive.writestr("tiny_git.py", Path("tiny_git.py").read_text())
        archive.writestr("tiny_git-1.5.dist-info/METADATA", METADATA)
        archive.writestr("tiny_git-1.5.dist-info/WHEEL", wheel)
        archive.writestr("tiny_git-1.5.dist-info/RECORD", "")
    return name
"""


@dataclass
class Machine:
    """A root with a working environment, a playbook, and an empty cache for uv."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def environment(self) -> dict[str, str]:
        return {"UV_CACHE_DIR": str(self.folder / "cache"), "UV_HTTP_RETRIES": "0"}

    def play(self, **arguments: Any) -> None:
        tasks = [
            {"venv_backup": {"path": str(self.folder / "env")}},
            {"name": "Candidate", "python_env": arguments},
        ]
        (self.folder / "play.yml").write_text(json.dumps([{"hosts": "localhost", "tasks": tasks}]))

    def run(self, command: str, *more: str) -> Answer:
        playbook = () if "--plan" in more or "--resume" in more else ("--playbook", self.folder / "play.yml")
        return crossgrade(command, *playbook, "--root", self.root, *more, environment=self.environment)

    def plan(self) -> dict[str, Any]:
        """The python_env task of a plan."""
        answer = self.run("plan", "--json")
        assert answer.code == 0, answer.stderr
        task: dict[str, Any] = answer.of_kind("plan")[0]["plan"]["tasks"][-1]
        return task

    @property
    def site(self) -> Path:
        return next((self.root / "store/generations/2/venv/lib").glob("python3*/site-packages"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    wheels = tmp_path / "old"
    wheels.mkdir()
    old = [
        tiny_wheel(wheels, "tiny-server", "1.0", requires=["tiny-torch"]),
        tiny_wheel(wheels, "tiny-torch", "2.9.1"),
        tiny_wheel(wheels, "tiny-numpy", "3.0"),
        tiny_wheel(wheels, "tiny-tool", "1.0"),
    ]
    tiny_venv(tmp_path / "env", *old)
    return Machine(tmp_path)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    folder = tmp_path / "main"
    folder.mkdir()
    tiny_wheel(folder, "tiny-server", "2.0", requires=["tiny-torch==2.11.0", "tiny-numpy<3"])
    tiny_wheel(folder, "tiny-torch", "2.11.0")
    tiny_wheel(folder, "tiny-numpy", "2.0")
    with serving(Index(folder)) as served:
        yield served


def text_of(root: Path) -> Iterator[tuple[Path, bytes]]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            if path.is_file() and not path.is_symlink():
                yield path, path.read_bytes()


# ---- where dists come from


def test_each_change_says_why_and_from_which_index(machine: Machine, index: Index, tmp_path: Path) -> None:
    (tmp_path / "cu130").mkdir()
    tiny_wheel(tmp_path / "cu130", "tiny-torch", "2.11.0+cu130")
    with serving(Index(tmp_path / "cu130", as_json=False)) as extra:
        machine.play(requirements=["tiny-server"], index_url=index.url, extra_index_urls=[extra.url])
        task = machine.plan()
        assert task["differences"] == [
            {
                "subject": "tiny-server",
                "before": "1.0",
                "after": "2.0",
                "why": f"asked for by the playbook; from {index.url}",
            },
            {
                "subject": "tiny-numpy",
                "before": "3.0",
                "after": "2.0",
                "why": f"asked for by tiny-server; from {index.url}",
            },
            {
                "subject": "tiny-torch",
                "before": "2.9.1",
                "after": "2.11.0+cu130",
                "why": f"asked for by tiny-server; from {extra.url}",
            },
            {"subject": "tiny-tool", "before": "1.0", "after": "", "why": ""},
        ]
        counts = "2 upgraded, 1 downgraded, 1 removed"
        assert f"{counts}, 2 from {index.url}, 1 from {extra.url}" in task["summary"]
        shown = machine.run("plan", "--diff").stdout
        assert f"tiny-torch: 2.9.1 -> 2.11.0+cu130 (asked for by tiny-server; from {extra.url})" in shown
        done = machine.run("upgrade", "--yes")
    assert done.code == 0, done.stderr
    assert (machine.site / "tiny_torch-2.11.0+cu130.dist-info").is_dir()


def test_no_password_of_an_address_is_kept_or_shown(machine: Machine, index: Index, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    tiny_wheel(tmp_path / "private", "tiny-torch", "2.11.0+cu130")
    by_address = tiny_wheel(tmp_path / "private", "tiny-kernels", "0.4")
    with serving(Index(tmp_path / "private", user=f"me:{SECRET}")) as private:
        host = f"127.0.0.1:{private.port}"
        machine.play(
            requirements=["tiny-server", f"tiny-kernels @ http://me:{SECRET}@{host}/files/{by_address.name}"],
            index_url=index.url,
            extra_index_urls=[f"http://me:{SECRET}@{host}/simple"],
        )
        saved = tmp_path / "plan.json"
        planned = machine.run("plan", "--diff", "-vv", "-o", str(saved))
        assert planned.code == 0, planned.stderr
        told = saved.read_text() + planned.stdout + planned.stderr
        assert "2.11.0+cu130" in told
        assert f"{host}/simple" in told
        done = machine.run("upgrade", "--yes", "-vv")
        assert done.code == 0, done.stderr
        told += done.stdout + done.stderr
        private.user = "me:another"  # what uv says of a refusal
        failed = machine.run("plan", "-e", "again=1")
        told += failed.stdout + failed.stderr
    assert (machine.site / "tiny_kernels-0.4.dist-info").is_dir()
    assert SECRET not in told
    assert [path for path, content in text_of(machine.root) if SECRET.encode() in content] == []


def test_a_saved_plan_installs_what_it_says_though_the_index_has_moved_on(machine: Machine, index: Index) -> None:
    machine.play(requirements=["tiny-server", "tiny-numpy"], index_url=index.url)
    assert machine.run("plan", "-o", str(machine.folder / "plan.json")).code == 0
    tiny_wheel(index.folder, "tiny-numpy", "2.5")
    done = machine.run("upgrade", "--yes", "--plan", str(machine.folder / "plan.json"))
    assert done.code == 0, done.stderr
    assert (machine.site / "tiny_numpy-2.0.dist-info").is_dir()


# ---- as users state them


def test_a_git_repository_is_pinned_built_once_and_installed(machine: Machine, index: Index, tmp_path: Path) -> None:
    source = tmp_path / "repository" / "python"
    source.mkdir(parents=True)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "tiny-git"\nversion = "1.5"\n'
    )
    (source / "backend.py").write_text(BACKEND)
    (source / "tiny_git.py").write_text("TAKEN = 'first'\n")
    commit = commit_all(source.parent)
    requirement = f"tiny-git @ git+file://{source.parent}@main#subdirectory=python"
    machine.play(requirements=[requirement, "tiny-numpy"], index_url=index.url)
    saved = machine.folder / "plan.json"
    planned = machine.run("plan", "--diff", "-o", str(saved))
    assert planned.code == 0, planned.stderr
    assert (
        f"tiny-git: (absent) -> git {commit} (asked for by the playbook; git file://{source.parent}" in planned.stdout
    )
    (source / "tiny_git.py").write_text("TAKEN = 'second'\n")
    assert commit_all(source.parent) != commit
    done = machine.run("upgrade", "--yes", "--plan", str(saved))
    assert done.code == 0, done.stdout + done.stderr
    assert (machine.site / "tiny_git.py").read_text() == "TAKEN = 'first'\n"
    records = list((machine.root / "store/wheels").glob("*/wheel.json"))
    assert [json.loads(record.read_text())["inputs"]["git"]["commit"] for record in records] == [commit]
    assert crossgrade("gc", "--root", machine.root).code == 0
    assert records[0].is_file(), "gc took a wheel that a generation names"
    # another generation with it: no build, and the repository need not be there
    machine.play(requirements=[requirement.replace("@main", f"@{commit}"), "tiny-server"], index_url=index.url)
    again = machine.run("upgrade", "--yes", "--json")
    assert again.code == 0, again.stderr
    logs = [path.name for path in (machine.root / "store/runs").glob("*/git-*.log")]
    assert len(logs) == 1, logs


def commit_all(repository: Path) -> str:
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    if not (repository / ".git").is_dir():
        subprocess.run([*git, "init", "--quiet", "--initial-branch=main"], check=True)
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message=a change"], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def test_a_git_build_that_fails_says_why_and_leaves_nothing(machine: Machine, index: Index, tmp_path: Path) -> None:
    source = tmp_path / "repository"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "tiny-git"\nversion = "1.5"\n'
    )
    (source / "backend.py").write_text("def build_wheel(*_):\n    raise SystemExit('kernels.cu(7): no such thing')\n")
    commit = commit_all(source)
    machine.play(requirements=[f"tiny-git @ git+file://{source}@{commit}"], index_url=index.url)
    failed = machine.run("upgrade", "--yes")
    assert failed.code == 2, failed.stdout
    assert "tiny-git could not be built from git" in failed.stdout
    assert "kernels.cu(7): no such thing" in failed.stdout
    assert list((machine.root / "store/wheels").iterdir()) == []
    assert not list((machine.root / "store/tmp").glob("git-*"))
    assert not (machine.root / "store/generations/2").exists()


def test_a_wheel_by_its_path_is_known_by_its_content(machine: Machine, index: Index) -> None:
    folder = machine.folder / "files"
    folder.mkdir()
    tiny_wheel(folder, "tiny-local", "1.0+cu130", {"tiny_local.py": b"A = 1\n"})
    machine.play(requirements=["files/tiny_local-1.0+cu130-py3-none-any.whl"], index_url=index.url)
    done = machine.run("upgrade", "--yes")
    assert done.code == 0, done.stderr
    assert (machine.site / "tiny_local.py").read_text() == "A = 1\n"
    assert "built from the same inputs" in machine.plan()["summary"]
    tiny_wheel(folder, "tiny-local", "1.0+cu130", {"tiny_local.py": b"A = 2\n"})
    assert machine.plan()["action"] == "change"


def test_requirements_files_are_read_with_their_options(machine: Machine, index: Index) -> None:
    (machine.folder / "more").mkdir()
    (machine.folder / "requirements.txt").write_text(
        f"--index-url {index.url}\n-r more/server.txt  # beside\n-c more/held.txt\n"
    )
    (machine.folder / "more/server.txt").write_text('tiny-server >= 1 ; python_version > "3"\n')
    (machine.folder / "more/held.txt").write_text("tiny-numpy == 2.0\n")
    machine.play(requirements_files=["requirements.txt"])
    task = machine.plan()
    assert {one["subject"]: one["after"] for one in task["differences"]}["tiny-numpy"] == "2.0"
    (machine.folder / "more/server.txt").write_text("six\n-e ./checkout\n")
    answer = machine.run("plan")
    assert answer.code == 1
    assert "more/server.txt:2:1: the option -e cannot be taken over" in answer.stderr + answer.stdout


@pytest.mark.parametrize("right", [True, False])
def test_hashes_of_a_requirements_file_are_kept_to(machine: Machine, index: Index, right: bool) -> None:
    digest = sha256(index.files("tiny-numpy")[0].read_bytes()).hexdigest() if right else "0" * 64
    (machine.folder / "requirements.txt").write_text(f"tiny-numpy==2.0 \\\n    --hash=sha256:{digest}\n")
    machine.play(requirements_files=["requirements.txt"], index_url=index.url)
    answer = machine.run("plan")
    assert answer.code == (0 if right else 1), answer.stdout + answer.stderr
    assert ("no file of tiny-numpy 2.0 has a hash" in answer.stdout + answer.stderr) is not right


# ---- warnings


def test_what_a_person_should_know_of_a_resolution(machine: Machine, index: Index) -> None:
    for version, day in (("0.1", "2024-01-31"), ("0.5", "2026-11-30")):
        requires = ["tiny-torch<2"] if version == "0.5" else []
        wheel = tiny_wheel(index.folder, "tiny-stack", version, requires=requires)
        index.published[wheel.name] = day
    taken_back = tiny_wheel(index.folder, "tiny-yanked", "1.0")
    index.yanked[taken_back.name] = "broken kernels"
    tiny_wheel(index.folder, "tiny-early", "1.0")
    tiny_wheel(index.folder, "tiny-early", "2.0rc1")
    with tarfile.open(index.folder / "tiny_source-1.0.tar.gz", "w:gz") as archive:
        for name, content in (
            ("PKG-INFO", "Metadata-Version: 2.2\nName: tiny-source\nVersion: 1.0\n"),
            ("pyproject.toml", '[project]\nname = "tiny-source"\nversion = "1.0"\n'),
        ):
            entry = tarfile.TarInfo(f"tiny_source-1.0/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content.encode()))
    uv_pip(machine.folder / "env", "install", str(tiny_wheel(machine.folder, "tiny-tool", "1.1")))
    asked = ["tiny-server", "tiny-stack", "tiny-yanked==1.0", "tiny-early", "tiny-source"]
    machine.play(requirements=asked, index_url=index.url, prerelease="allow")
    task = machine.plan()
    assert [(one["name"], one["subject"]) for one in task["warnings"]] == [
        ("prerelease-beside-final", "tiny-early"),
        ("held-back", "tiny-stack"),
        ("downgraded", "tiny-numpy"),
        ("built-from-source", "tiny-source"),
        ("yanked", "tiny-yanked"),
        ("no-longer-there", "tiny-tool"),
    ]
    said = {one["name"]: one["message"] for one in task["warnings"]}
    assert said["held-back"] == (
        "tiny-stack 0.1 was taken, though the requirement tiny-stack admits 0.5: it is 1034 days older than 0.5, "
        "the newest"
    )
    assert said["yanked"] == "tiny-yanked 1.0 was yanked: broken kernels"
    shown = machine.run("plan").stdout
    assert "warning: downgraded: tiny-numpy goes back from 3.0 to 2.0 (asked for by tiny-server)" in shown
    assert "remedy: If you need the newer one, add it to `requirements`" in shown
    machine.play(requirements=asked, index_url=index.url, prerelease="allow", on_warning="fail")
    strict = machine.run("plan")
    assert strict.code == 1
    assert "`on_warning: fail` is set" in strict.stderr
    names = ["pre*", "held-back:tiny-stack", "downgraded", "built-from-source", "yanked", "no-longer-there"]
    machine.play(requirements=asked, index_url=index.url, prerelease="allow", on_warning="fail", ignore_warnings=names)
    assert machine.run("plan").code == 0


def test_the_report_of_a_run_has_the_warnings(machine: Machine, index: Index) -> None:
    machine.play(requirements=["tiny-server"], index_url=index.url)
    done = machine.run("upgrade", "--yes", "--json")
    assert done.code == 0, done.stderr
    assert [one["name"] for one in done.result("Candidate")["warnings"]] == ["downgraded", "no-longer-there"]
    report = json.loads(Path(done.ended["report"]).read_text())
    assert [len(task["warnings"]) for task in report["tasks"] if task["name"] == "Candidate"] == [2]


# ---- downloads


def test_a_failing_network_is_tried_again(machine: Machine, index: Index) -> None:
    machine.play(requirements=["tiny-server"], index_url=index.url)
    assert machine.run("plan", "-o", str(machine.folder / "plan.json")).code == 0
    index.failures = 3
    done = machine.run("upgrade", "--yes", "--plan", str(machine.folder / "plan.json"))
    assert done.code == 0, done.stdout + done.stderr
    assert index.failures == 0


def test_what_was_downloaded_before_a_kill_is_not_downloaded_again(machine: Machine, index: Index) -> None:
    slow = "tiny_torch-2.11.0-py3-none-any.whl"
    machine.play(requirements=["tiny-server"], index_url=index.url)
    saved = machine.folder / "plan.json"
    assert machine.run("plan", "-o", str(saved)).code == 0
    index.asked.clear()
    index.stalled = {slow}
    argv = [str(PROGRAM), "upgrade", "--plan", str(saved), "--root", str(machine.root), "--yes"]
    with subprocess.Popen(argv, env={**os.environ, **machine.environment}, stdin=subprocess.DEVNULL) as run:
        until = time.monotonic() + 60
        while len(set(index.fetched())) < 3 and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.5)  # the others are written to the cache
        run.send_signal(signal.SIGKILL)
    index.stalled = set()
    before = sorted(index.fetched())
    assert slow in before
    index.asked.clear()
    resumed = machine.run("upgrade", "--resume", "--yes")
    assert resumed.code == 0, resumed.stdout + resumed.stderr
    assert set(index.fetched()) == {slow}
    assert (machine.site / "tiny_torch-2.11.0.dist-info").is_dir()
