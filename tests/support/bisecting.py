"""Two real generations of many tiny dists, of which some slow a small server down: what a bisect is to find.

The dists lie on a local index. The server imports them all; a dist may bring a factor for the time of a token, or a tag
that slows it down only beside another tag. Its speed is exact: it sleeps.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.commands import Answer, crossgrade
from tests.support.gate_host import SERVER
from tests.support.package_index import Index, serving
from tests.support.tiny_wheels import tiny_wheel
from tests.support.toolkits import uv_program

from crossgrade.store.layout import Store

QUESTION = ("--from", "2", "--to", "3", "--metric", "stream_tokens_per_second_p90")
TOGETHER = 1.3  # the factor of all tags together
MAIN = """
import os, sys, pkgutil, importlib, pathlib
import small_server

factor, tags = float(os.environ.get("TOKEN_FACTOR", "1")), set()
for found in pkgutil.iter_modules():
    if found.name.startswith("part_"):
        part = importlib.import_module(found.name)
        factor *= part.FACTOR
        tags |= part.TAGS
if {"x", "y"} <= tags:
    factor *= TOGETHER
told = pathlib.Path(os.environ.get("CUDA_HOME", "/nowhere"), "factor")
if told.is_file():
    factor *= float(told.read_text())
if "--slow" in sys.argv:
    factor *= 1.3
small_server.PAUSE *= factor
small_server.Server(("127.0.0.1", int(sys.argv[1])), small_server.Handler).serve_forever()
""".replace("TOGETHER", str(TOGETHER))

PLAYBOOK = """
- hosts: localhost
  gather_facts: false
  tasks:
    - venv_backup: {path: "{{ crossgrade_root }}/env"}
    - name: The candidate
      python_env:
        requirements: "{{ requirements }}"
        index_url: "{{ index }}"
        environment: "{{ variables | default({}) }}"
        toolkit: "{{ toolkit | default(omit) }}"
      register: candidate
    - abi_check: {generation: "{{ candidate.generation }}"}
    - benchmark:
        generation: "{{ candidate.generation }}"
        server:
          command: "{{ ['{python}', '-m', 'bisected_server', '{port}'] + options | default([]) }}"
          start_timeout: 60
        baseline_command: ['{python}', '-m', 'bisected_server', '{port}']
        on_not_run: warn
        # as in the rehearsal: what the fastest requests of both servers reach in turns hardly depends on other work
        side_by_side: true
        requests: 24
        warmup_requests: 2
        concurrency: 1
        max_tokens: 12
        metrics: {stream_tokens_per_second_p90: 0.10}
        minimum_pairs: 3
        maximum_pairs: 16
      when: not first | default(false)
    - activate: {generation: "{{ candidate.generation }}"}
"""


@dataclass(frozen=True)
class PartDist:
    """One dist in one version: its factor, its tags, what it requires, and other files."""

    factor: float = 1.0
    tags: Sequence[str] = ()
    requires: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


def name_of(number: int) -> str:
    return f"part-{number:02}"


@dataclass
class Bisected:
    """A store with generation 2 (all dists in version 1) and generation 3 (in version 2), which its gate rejected."""

    folder: Path
    index: Index
    older: Mapping[str, Any] = field(default_factory=dict)
    newer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def store(self) -> Store:
        return Store(self.root / "store")

    def run(
        self, command: str, *arguments: str, variables: Mapping[str, Any] | None = None, timeout: float = 900
    ) -> Answer:
        values = {"index": self.index.url, **(self.newer if variables is None else variables)}
        environment = {"UV_CACHE_DIR": str(self.folder / "uv-cache"), "TOKEN_FACTOR": "1"}
        return crossgrade(
            command, "--playbook", self.folder / "play.yml", "--root", self.root, "-e", json.dumps(values), *arguments,
            environment=environment, timeout=timeout,
        )  # fmt: skip

    def bisect(self, *arguments: str, timeout: float = 900) -> Answer:
        return self.run("bisect", *QUESTION, "--json", *arguments, timeout=timeout)

    def result(self, *arguments: str) -> dict[str, Any]:
        answer = self.bisect(*arguments)
        assert answer.code in (0, 2), answer.stderr
        return answer.of_kind("bisect_ended")[-1]


@contextmanager
def bisected(
    folder: Path,
    older: Mapping[str, PartDist],
    newer: Mapping[str, PartDist],
    *,
    variables: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> Iterator[Bisected]:
    """Make both generations: by two upgrades, of which the second one may fail at its benchmark."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    server = {"bisected_server.py": MAIN.encode(), "small_server.py": SERVER.read_bytes()}
    tiny_wheel(wheels, "bisected-server", "1", server)
    for version, parts in (("1", older), ("2", newer)):
        for name, part in parts.items():
            module = f"FACTOR, TAGS, VERSION = {part.factor}, {set(part.tags)!r}, {version}\n"
            files = {f"{name.replace('-', '_')}.py": module.encode(), **part.files}
            tiny_wheel(wheels, name, version, files, part.requires)
    root = folder / "root"
    root.mkdir()
    subprocess.run([uv_program(), "--quiet", "--offline", "venv", str(root / "env")], check=True)
    (folder / "play.yml").write_text(PLAYBOOK)
    with serving(Index(wheels)) as index:
        made = Bisected(
            folder,
            index,
            {"requirements": ["bisected-server==1", *(f"{name}==1" for name in older)], "first": True},
            {
                "requirements": ["bisected-server==1", *(f"{name}==2" for name in newer)],
                "variables": {**(variables or {})},
                "options": list(options),
            },
        )
        answer = made.run("upgrade", "--yes", variables=made.older)
        assert answer.code == 0, answer.stdout + answer.stderr
        assert made.store.active() == 2
        yield made
