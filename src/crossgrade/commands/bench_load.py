"""`bench load`: how fast and how exact the load client is on this machine."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from crossgrade.commands.benchmarking import machine_name
from crossgrade.errors import ExitCode
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line

ROUNDS = 3
CONNECTIONS = 64
TOKENS_PER_SECOND = 2000.0
CEILING_TOKENS = 40_000


def bench_load() -> int:
    """Print the ceiling and the error of inter-token times, by the kernel's time stamps and by the client's clock."""
    from crossgrade.bench.ceiling import measure_client_ceiling
    from crossgrade.bench.precision import measure_precision

    terminal = Terminal(sys.stdout)
    terminal.write([Line(f"machine: {machine_name()}; load before: {os.getloadavg()[0]:.1f}")])
    for _ in range(ROUNDS):
        ceiling = measure_client_ceiling(CONNECTIONS, CEILING_TOKENS)
        text = f"{ceiling.tokens_per_second:>10,.0f} tokens/s over {CONNECTIONS} streams"
        terminal.write([Line(f"{'ceiling, the echo in the same thread':<40}{text}")])
    terminal.write(
        [
            Line(f"{CONNECTIONS} streams from a paced echo in its own process, error of the times between two tokens:"),
            Line(f"{'':<40}{'tokens/s':>10}{'median':>10}{'99%':>10}{'largest':>10}{'others':>8}"),
        ]
    )
    with tempfile.TemporaryDirectory(prefix="crossgrade-bench-") as folder:
        for number in range(2 * ROUNDS):
            found = measure_precision(
                Path(folder),
                tokens_per_second=TOKENS_PER_SECOND,
                connections=CONNECTIONS,
                by_kernel=number % 2 == 0,
            )
            times = "".join(f"{1000 * value:>7.3f} ms" for value in (found.median, found.percentile_99, found.largest))
            others = "?" if found.others is None else f"{100 * found.others:.0f}%"
            name = "timed by the kernel" if found.by_kernel else "timed by the client, to compare"
            terminal.write([Line(f"{name:<40}{found.tokens_per_second:>10,.0f}{times}{others:>8}")])
    return ExitCode.DONE
