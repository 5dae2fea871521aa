"""Commands run for real, with what they printed: the transcript from which docs/walkthrough.md is made."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.commands import PROGRAM, Answer


@dataclass
class Walkthrough:
    """A folder in which commands run, and the Markdown of what they printed, written as it grows.

    `short` maps what stands for this machine's places to what a reader sees in their place.
    """

    folder: Path
    file: Path
    environment: Mapping[str, str]
    short: Mapping[str, str]
    parts: list[str] = field(default_factory=list)

    def tell(self, text: str) -> None:
        """A paragraph between the commands."""
        self._add(f"{text}\n")

    def crossgrade(
        self, *arguments: str, timeout: float = 5400, shown: str = "", head: int = 1000, tail: int = 1000
    ) -> Answer:
        """Run the program as a user does. `shown` stands for the command where it is long.

        Of what it prints, the transcript has the first `head` and the last `tail` lines, and says what is left out.
        """
        began = time.monotonic()
        completed = subprocess.run(
            [str(PROGRAM), *arguments],
            cwd=self.folder, env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - began
        command = shown or f"crossgrade {' '.join(arguments)}"
        ended = f"(exit code {completed.returncode}, {seconds:.1f} s)"
        self._add(f"```console\n$ {command}\n{shortened(completed.stdout.rstrip(), head, tail)}\n{ended}\n```\n")
        return Answer(completed.returncode, completed.stdout, "")

    def _add(self, text: str) -> None:
        for place, word in self.short.items():
            text = text.replace(place, word)
        self.parts.append(text)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text("\n".join(self.parts), encoding="utf-8")
        print(text, file=sys.__stdout__, flush=True)


def shortened(text: str, head: int, tail: int) -> str:
    """The first and last lines, each of at most 240 characters, with a mark where something is left out."""
    lines = [line if len(line) <= 240 else f"{line[:240]} [...]" for line in text.splitlines()]
    if len(lines) > head + tail:
        lines[head : len(lines) - tail] = [f"[... {len(lines) - head - tail} lines ...]"]
    return "\n".join(lines)
