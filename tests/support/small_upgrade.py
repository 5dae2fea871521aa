"""A whole upgrade in a second: real venvs, a server that starts from them, no network, no compiler.

The working environment holds `small_engine` 1.0, the candidate 2.0 (`-e version=3.0` asks for 3.0, and
`-e imports=missing` makes a gate fail). Besides the transaction's own steps it
writes files by `copy`, `file` and `template`, so that every kind of undo is among its steps. The fault tests
run it as a user would, and look at the result from outside.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.commands import PROGRAM, Answer, processes_below
from tests.support.toolkits import uv_program

from crossgrade.store.layout import Store
from crossgrade.store.manifest import Manifest, build_manifest, compare, read_manifest

SERVER = """
import http.server, json, sys
from small_engine import VERSION

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"version": VERSION, "prefix": sys.prefix}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

def main():
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()

if __name__ == "__main__":
    main()
"""

PLAYBOOK = """
- name: A small upgrade
  hosts: localhost
  vars:
    env: "{{ crossgrade_root }}/env"
    files: "{{ crossgrade_root }}/files"
    version: "2.0"
    imports: [small_engine, small_engine.server]
  tasks:
    - name: Back up
      venv_backup: {path: "{{ env }}"}
    - name: Folder
      file: {path: "{{ files }}/new/deep", state: directory, mode: "0750"}
    - name: Settings
      copy: {content: "port = 2\\n", dest: "{{ files }}/settings"}
    - name: Unit
      template: {src: unit.j2, dest: "{{ files }}/new/unit"}
    - name: Link
      file: {src: settings, dest: "{{ files }}/link", state: link}
    - name: Old file goes
      file: {path: "{{ files }}/old", state: absent}
    - name: Candidate
      python_env: {requirements: [], wheels: ["{{ playbook_dir }}/small_engine-{{ version }}-py3-none-any.whl"]}
      register: candidate
    - name: Imports
      smoke_check: {generation: "{{ candidate.generation }}", imports: "{{ imports }}"}
    - name: Server
      server:
        generation: "{{ candidate.generation }}"
        command: ["{python}", -m, small_engine.server, "{port}"]
        health: /
        start_timeout: 60
    - name: Activate
      activate: {generation: "{{ candidate.generation }}"}
"""


def make_wheel(folder: Path, version: str) -> Path:
    """A wheel of a package `small_engine` with a server and a console script."""
    info = f"small_engine-{version}.dist-info"
    files = {
        "small_engine/__init__.py": f'VERSION = "{version}"\n',
        "small_engine/server.py": SERVER,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: small-engine\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nsmall-engine = small_engine.server:main\n",
    }
    record = []
    path = folder / f"small_engine-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(text)}\n")
        wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD", (2026, 1, 1, 0, 0, 0)), "".join(record) + f"{info}/RECORD,,\n")
    return path


@dataclass(frozen=True)
class SmallUpgrade:
    """One server to be. `root` holds `env`, `files` and the store; `before` is the environment as it was made."""

    folder: Path
    before: Manifest

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def playbook(self) -> Path:
        return self.folder / "play.yml"

    @property
    def env(self) -> Path:
        return self.root / "env"

    @property
    def store(self) -> Store:
        return Store(self.root / "store")

    def argv(self, command: str, *arguments: str) -> list[str]:
        return [str(PROGRAM), command, "--playbook", str(self.playbook), "--root", str(self.root), *arguments]

    def run(
        self, command: str, *arguments: str, environment: Mapping[str, str] | None = None, timeout: float = 120
    ) -> Answer:
        """Run a command in a process group of its own, as a kill of the whole group must not reach the tests."""
        completed = subprocess.run(
            self.argv(command, *arguments),
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            start_new_session=True,
        )
        return Answer(completed.returncode, completed.stdout, completed.stderr)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", "--json").stdout)
        return found

    def outcome(self) -> str:
        """`old` or `new`: which environment people get now. Fails when it is neither, or not whole to the byte."""
        assert self.env.is_dir(), f"{self.env} is gone"
        if not self.env.is_symlink():
            assert build_manifest(self.env).digest == self.before.digest, "the plain environment was changed"
            return "old"
        active = self.store.active()
        assert active is not None, f"{self.env} points at {os.readlink(self.env)}"  # noqa: PTH115 - for the message
        manifest = read_manifest(self.store.manifest_path(active))
        comparison = compare(manifest, self.store.venv(active), full=True)
        assert comparison.identical, comparison
        # what was adopted is in use before it is on record as ready, and whole all the same
        assert self.store.generation(active).state == "ready" or self.store.generation(active).origin == "adopted"
        if self.store.generation(active).origin == "adopted":
            assert manifest.digest == self.before.digest, "the backup is not what was adopted"
            return "old"
        return "new"

    def version(self) -> str:
        """What the environment's own program says when it is started through the path that people use."""
        program = [str(self.env / "bin" / "python"), "-B", "-c", "import small_engine as e; print(e.VERSION)"]
        return subprocess.run(program, capture_output=True, text=True, check=True).stdout.strip()

    def let_the_confirmation_lapse(self) -> None:
        """Its time is over, and nobody watches: no wait for a deadline, which a busy machine may reach too early."""
        os.kill(self.status()["confirmation"]["watcher"], signal.SIGKILL)
        path = self.store.root / "confirmation.json"
        record = json.loads(path.read_text())
        for name in ("deadline", "boot_deadline"):
            record[name] -= record["within"] + 1
        path.write_text(json.dumps(record))

    def left_over(self) -> list[str]:
        return processes_below(self.root)


def make_small_upgrade(folder: Path) -> SmallUpgrade:
    """Make the working environment and its files, the wheels and the playbook. Takes a fraction of a second."""
    folder.mkdir(parents=True, exist_ok=True)
    root = folder / "root"
    files = root / "files"
    files.mkdir(parents=True)
    (files / "settings").write_text("port = 1\n")
    (files / "settings").chmod(0o640)
    (files / "old").write_text("still needed\n")
    old_wheel = make_wheel(folder, "1.0")
    for version in ("2.0", "3.0"):
        make_wheel(folder, version)
    (folder / "unit.j2").write_text("[Service]\nExecStart={{ env }}/bin/small-engine 8000\n")
    (folder / "play.yml").write_text(PLAYBOOK)
    env = root / "env"
    uv = [uv_program(), "--quiet", "--offline"]
    subprocess.run([*uv, "venv", str(env)], check=True)
    subprocess.run([*uv, "pip", "install", "--python", str(env / "bin" / "python"), str(old_wheel)], check=True)
    return SmallUpgrade(folder, build_manifest(env))


def keep(made: SmallUpgrade) -> Callable[[], SmallUpgrade]:
    """Keep it as it is now; what is returned puts it back to that, at the same place, as venvs hold their own path.

    For tests that all begin at the same state: putting it back takes a tenth of what the upgrades took that led there.
    """
    kept = Path(tempfile.mkdtemp(prefix="kept", dir=made.folder.parent)) / "it"
    copy_tree(made.folder, kept)

    def again() -> SmallUpgrade:
        shutil.rmtree(made.folder)
        copy_tree(kept, made.folder)
        return made

    return again


def copy_tree(source: Path, target: Path) -> None:
    """With links, modes and times, as `cp -a` does."""
    subprocess.run(["cp", "-a", "--reflink=auto", str(source), str(target)], check=True)
