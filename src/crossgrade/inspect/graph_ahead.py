"""The import graph of a server, followed in a process of its own while this one reads the native files.

Either takes seconds for SGLang, and Python does one thing at a time. Run as a program, it writes the graph as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType

from crossgrade.inspect.import_graph import ImportGraph, Step
from crossgrade.inspect.python_source import When


class GraphAhead:
    """A graph that is on its way; use it in a `with` statement. Without entry points nothing is started."""

    def __init__(self, site: str, python: tuple[int, int], entries: Sequence[str]) -> None:
        self._site, self._python, self._entries = site, python, tuple(entries)
        self._process: subprocess.Popen[bytes] | None = None
        self._graph: ImportGraph | None = None
        if entries and (os.cpu_count() or 1) > 1:
            words = [sys.executable, "-m", __name__, site, ".".join(map(str, python)), *entries]
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    def graph(self) -> ImportGraph:
        """The graph; followed here and now where the other process could not."""
        if self._graph is not None:
            return self._graph
        graph = self._graph = ImportGraph(self._site, self._python)
        try:
            output = self._process.communicate()[0] if self._process else b""
            graph.steps = {name: Step(When(when), by) for name, (when, by) in json.loads(output).items()}
        except ValueError:
            graph.walk(self._entries)
        return graph

    def __enter__(self) -> GraphAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout:
                self._process.stdout.close()


def main(site: str, python: str, *entries: str) -> None:
    major, _, minor = python.partition(".")
    graph = ImportGraph(site, (int(major), int(minor)))
    graph.walk(entries)
    sys.stdout.write(json.dumps({name: (int(step.when), step.by) for name, step in graph.steps.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
