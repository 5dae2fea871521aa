"""`bench verdicts`: how often the benchmark gate is right, with servers that are slower by a known share."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from crossgrade.bench.verdict_proof import Repetition, proof_table, prove
from crossgrade.commands.benchmarking import machine_name
from crossgrade.errors import ExitCode
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line

REPETITIONS = 40


def bench_verdicts() -> int:
    """Print each outcome and the table, as Markdown. It takes hours; an interrupt ends it with the table so far."""
    terminal = Terminal(sys.stdout)
    terminal.write([Line(f"machine: {machine_name()}; load before: {os.getloadavg()[0]:.1f}")])
    done: list[Repetition] = []

    def tell(one: Repetition) -> None:
        done.append(one)
        said = f"{one.kind}, {100 * one.loss:g}%: {one.outcome} after {one.pairs} pairs: {one.judged}"
        terminal.write([Line(said)])

    try:
        with tempfile.TemporaryDirectory(prefix="crossgrade-bench-") as folder:
            prove(REPETITIONS, Path(folder), None, tell)
    finally:
        # an interrupted one shows what it has
        _show(done, terminal)
    return ExitCode.DONE


def _show(done: list[Repetition], terminal: Terminal) -> None:
    head, *rows = proof_table(done)
    for row in (head, ["---"] * len(head), *rows):
        terminal.write([Line(f"| {' | '.join(row)} |")])
