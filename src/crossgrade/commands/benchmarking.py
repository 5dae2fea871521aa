"""`bench`: how long our own commands take here, beside peers doing the like, in one run, as medians and ratios.

Nothing is judged: the figures are for the README and the docs, together with the machine that is named.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossgrade.commands.common import existing_store, guarded, request_from
from crossgrade.commands.measuring import program
from crossgrade.engine.request import Request
from crossgrade.errors import CrossgradeError, ExitCode, WrongOptionsError
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line

REPEATS = 7
_PEER_PLAYBOOK = """
- hosts: localhost
  gather_facts: false
  tasks:
"""
_PEER_TASK = """    - name: task {number}
      ansible.builtin.stat:
        path: /
"""


@dataclass(frozen=True)
class Timing:
    """Seconds of each repeat of one command, and how it is called."""

    label: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def bench_command(options: Mapping[str, Any]) -> int:
    """Measure on the store that an upgrade has left, and leave the active generation as it was; or `bench store`."""
    if not options["what"]:
        return guarded(lambda: _bench(request_from(options, "bench")))
    if options["what"] == "store":
        from crossgrade.commands.bench_store import bench_store

        return guarded(lambda: bench_store(options))
    if options["what"] == "inspect":
        from crossgrade.commands.bench_inspect import bench_inspect

        return guarded(lambda: bench_inspect(options))
    if options["what"] == "load":
        from crossgrade.commands.bench_load import bench_load

        return guarded(bench_load)
    if options["what"] == "verdicts":
        from crossgrade.commands.bench_verdicts import bench_verdicts

        return guarded(bench_verdicts)
    if options["what"] in ("compare", "history"):
        from crossgrade.commands.bench_history import bench_compare, bench_history

        return guarded(lambda: (bench_compare if options["what"] == "compare" else bench_history)(options))
    return guarded(lambda: _unknown(options["what"]))


def _unknown(what: str) -> int:
    raise WrongOptionsError(
        f"--what {what}: nothing is measured by that name",
        remedy="Say `bench`, or `bench` with `store`, `inspect`, `load`, `verdicts`, `history` or `compare A B`.",
    )


def _bench(request: Request) -> int:
    store = existing_store(request)
    active = store.active()
    if active is None or active < 2:
        raise CrossgradeError(
            "bench needs a store with an activated candidate", remedy="Run `crossgrade upgrade` first."
        )
    terminal = Terminal(sys.stdout)
    terminal.write([Line(f"machine: {machine_name()}; medians of {REPEATS}")])
    options = ["--root", str(request.root), "--playbook", str(request.playbook)]
    crossgrade = program("crossgrade")
    rows = [
        _time("crossgrade --version", [crossgrade, "--version"]),
        _time("crossgrade plan, nothing to do", [crossgrade, "plan", *options]),
        _time("crossgrade status --json", [crossgrade, "status", "--json", *options]),
        _time(
            "crossgrade rollback",
            [crossgrade, "rollback", *options],
            before=lambda: _quiet([crossgrade, "rollback", "--to", str(active), *options]),
        ),
    ]
    _quiet([crossgrade, "rollback", "--to", str(active), *options])
    terminal.write(Line(f"{row.label:<46} {row.median * 1000:>8.0f} ms") for row in rows)
    peers = _peers(_count_tasks(request))
    for peer, ours in peers:
        base = next(row for row in rows if row.label == ours)
        ratio = peer.median / base.median
        terminal.write([Line(f"{peer.label:<46} {peer.median * 1000:>8.0f} ms   {ratio:.1f} times `{ours}`")])
    if not peers:
        terminal.write([Line("ansible-core is not installed here (the dev extra): no peer was measured", "warning")])
    return ExitCode.DONE


def _count_tasks(request: Request) -> int:
    from crossgrade.engine.prepare import prepare
    from crossgrade.playbook.model import walk

    prepared = prepare(request)
    return sum(1 for play, _ in prepared.plays for _, steps in play.sections() for _ in walk(steps))


def _quiet(argv: Sequence[str]) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)


def _time(label: str, argv: Sequence[str], *, before: Callable[[], None] | None = None) -> Timing:
    """The first call is thrown away: it warms the page cache for both sides alike."""
    seconds = []
    for _ in range(REPEATS + 1):
        if before:
            before()
        began = time.perf_counter()
        _quiet(argv)
        seconds.append(time.perf_counter() - began)
    return Timing(label, tuple(seconds[1:]))


def _peers(tasks: int) -> list[tuple[Timing, str]]:
    """Ansible checking as many tasks that have nothing to do, where it is installed."""
    ansible = Path(program("ansible-playbook"))
    if not ansible.exists():
        return []
    with tempfile.TemporaryDirectory(prefix="crossgrade-bench-") as folder:
        playbook = Path(folder) / "peer.yml"
        playbook.write_text(_PEER_PLAYBOOK + "".join(_PEER_TASK.format(number=n) for n in range(tasks)))
        argv = [str(ansible), "-i", "localhost,", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}"]
        checking = _time(f"ansible-playbook --check, {tasks} x stat", [*argv, "--check", str(playbook)])
        version = _time("ansible-playbook --version", [str(ansible), "--version"])
    return [(version, "crossgrade --version"), (checking, "crossgrade plan, nothing to do")]


def machine_name() -> str:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}, Python {platform.python_version()}"
