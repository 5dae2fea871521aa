"""The collective gate: do some GPUs add up numbers together, and in time, with the NCCL of this environment?

A transfer between GPUs that hangs leaves them at 100% until they are reset, and no rollback of software cures it.
So a few processes try it first, under a time limit. `run_ranks` gathers the evidence with real processes,
`judge_ranks` is pure.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossgrade.gates.verdict import Finding, Verdict, counted, joined
from crossgrade.jsontype import JSON
from crossgrade.process import LeftBehindError, run_process

GATE = "nccl"
OUTPUT_LINES = 20
SIZES = (1 << 10, 1 << 20, 64 << 20)  # bytes of one tensor: NCCL chooses another protocol for each
# A rank that has failed leaves the others waiting for it
_LEFT_ALONE_SECONDS = 5
RESET = (
    "GPUs that stand at 100% now (nvidia-smi) stay so until they are reset: nvidia-smi --gpu-reset, or a reboot; no "
    "rollback of software cures it. Where NCCL_P2P_DISABLE=1 in `environment` lets it pass, the way between the GPUs "
    "is the cause: look at peer_access and bridge_redirection of preflight"
)

# One rank. All that libraries print may be in between, so each line of ours begins with a word made up for this run.
_RANK = """
import json, os, sys
sys.path[:] = [entry for entry in sys.path if entry]
word, backend, rank, ranks, store, seconds, sizes = sys.argv[1:]
rank, ranks = int(rank), int(ranks)
def say(stage, **more):
    sys.stdout.write("\\n" + word + json.dumps({"rank": rank, "stage": stage, **more}) + "\\n")
    sys.stdout.flush()
say("started")
from datetime import timedelta
import torch
import torch.distributed as distributed
device = "cpu"
if backend == "nccl":
    if torch.cuda.device_count() < ranks:
        say("lacking", gpus=torch.cuda.device_count())
        raise SystemExit(0)
    torch.cuda.set_device(rank)
    device = f"cuda:{rank}"
    say("imported", nccl=".".join(map(str, torch.cuda.nccl.version())))
else:
    say("imported")
distributed.init_process_group(
    backend, init_method="file://" + store, rank=rank, world_size=ranks, timeout=timedelta(seconds=float(seconds))
)
say("joined")
for size in map(int, sizes.split(",")):
    tensor = torch.full((size // 4,), float(rank + 1), device=device)
    distributed.all_reduce(tensor)
    wrong = int((tensor != ranks * (ranks + 1) / 2).sum())
    say("added", bytes=size, wrong=wrong)
distributed.destroy_process_group()
say("left")
os._exit(0)
"""

# Starts the ranks and ends the rest some seconds after one of them has failed.
_LAUNCHER = """
import subprocess, sys, time
code, ranks, grace, *arguments = sys.argv[1:]
word, backend, rest = arguments[0], arguments[1], arguments[2:]
running = [
    subprocess.Popen([sys.executable, "-B", "-c", code, word, backend, str(rank), ranks, *rest])
    for rank in range(int(ranks))
]
failed = None
while any(one.poll() is None for one in running):
    if failed is None and any(one.poll() for one in running):
        failed = time.monotonic()
    if failed is not None and time.monotonic() - failed > float(grace):
        for one in running:
            one.kill()
    time.sleep(0.05)
raise SystemExit(max(abs(one.returncode) for one in running))
"""


@dataclass(frozen=True)
class Ranks:
    """What came of one try. ``stages`` gives, for each rank, what it said, in order; ``sizes`` are in bytes.

    ``outcome`` is what happened to the program, such as ``exit code 1``; ``stuck`` says that processes could not be
    killed. ``output`` is the end of what was printed beside.
    """

    backend: str
    sizes: tuple[int, ...]
    stages: tuple[tuple[Mapping[str, Any], ...], ...]
    succeeded: bool
    timed_out: bool
    outcome: str
    seconds: float
    output: str = ""
    stuck: str = ""

    def last(self, rank: int) -> Mapping[str, Any]:
        return self.stages[rank][-1] if self.stages[rank] else {"stage": "nothing"}


def run_ranks(
    python: Path,
    *,
    ranks: int,
    backend: str,
    environment: Mapping[str, str],
    timeout: float,
    sizes: Sequence[int] = SIZES,
    progress: Callable[[str], None] | None = None,
) -> Ranks:
    """Let ``ranks`` processes of ``python`` add up tensors of each size, at most ``timeout`` seconds in all.

    ``environment`` is the whole environment, the one that the generation's server gets. Raises StartError.
    """
    word = f"crossgrade-{secrets.token_hex(8)}:"
    with contextlib.ExitStack() as stack:
        where = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crossgrade-ranks-")))
        arguments = [word, backend, str(where / "store"), str(timeout), ",".join(map(str, sizes))]
        stages: list[list[Mapping[str, Any]]] = [[] for _ in range(ranks)]
        told: list[str] = []

        def hear(line: str) -> None:
            said = _said(line, word, ranks)
            if said is None:
                told.append(line)
                del told[: -4 * OUTPUT_LINES]
                return
            stages[said["rank"]].append(said)
            if progress is not None:
                progress(f"rank {said['rank']}: {said['stage']}")

        stuck = ""
        try:
            completed = run_process(
                [str(python), "-B", "-c", _LAUNCHER, _RANK, str(ranks), str(_LEFT_ALONE_SECONDS), *arguments],
                env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
                cwd=where,
                timeout=timeout,
                on_line=hear,
            )
            succeeded, timed_out = completed.succeeded, completed.timed_out
            outcome, seconds = completed.outcome(), completed.seconds
        except LeftBehindError as error:
            stuck, succeeded, timed_out, outcome, seconds = error.message, False, True, "cannot be killed", timeout
        output = "\n".join([line for line in told if line.strip()][-OUTPUT_LINES:])
        found = tuple(tuple(each) for each in stages)
        return Ranks(backend, tuple(sizes), found, succeeded, timed_out, outcome, seconds, output, stuck)


def _said(line: str, word: str, ranks: int) -> dict[str, Any] | None:
    """What a rank said in a line; None where it is not ours."""
    if not line.startswith(word):
        return None
    try:
        said = json.loads(line.removeprefix(word))
    except ValueError:
        return None
    known = isinstance(said, dict) and isinstance(said.get("rank"), int) and 0 <= said["rank"] < ranks
    return said if known else None


def judge_ranks(tried: Ranks) -> Verdict:
    """Passed when each rank added all sizes and has the right sums. Fewer GPUs than ranks: not run."""
    count = len(tried.stages)
    figures: dict[str, JSON] = {
        "backend": tried.backend,
        "ranks": count,
        "bytes": list(tried.sizes),
        "seconds": round(tried.seconds, 3),
        "nccl": next((said["nccl"] for rank in tried.stages for said in rank if "nccl" in said), None),
    }
    few = [said["gpus"] for rank in tried.stages for said in rank if said.get("stage") == "lacking"]
    if few:
        return Verdict(GATE, "not run", f"{count} GPUs are needed, and torch sees {few[0]}", (), figures)
    wrong = [said for rank in tried.stages for said in rank if said.get("wrong")]
    done = all(sum(said["stage"] == "added" for said in rank) == len(tried.sizes) for rank in tried.stages)
    if done and tried.succeeded and not wrong:
        version = f" {figures['nccl']}" if figures["nccl"] else ""
        reason = f"{count} ranks added {counted(len(tried.sizes), 'size')} up to {_shown(max(tried.sizes))}"
        return Verdict(GATE, "passed", f"{reason} by {tried.backend}{version}, with the right sums", (), figures)
    evidence: dict[str, JSON] = {"output": tried.output, "stages": [[dict(s) for s in rank] for rank in tried.stages]}
    if wrong:
        message = f"rank {wrong[0]['rank']} has {wrong[0]['wrong']} wrong sums of {_shown(wrong[0]['bytes'])}"
        message += ": what arrives from other GPUs is not what was sent"
        finding = Finding("failure", tried.backend, message, evidence)
        return Verdict(GATE, "failed", message, (finding,), figures)
    where = joined(f"rank {rank} {_words(tried.last(rank))}" for rank in range(count))
    message = f"{tried.outcome}; {where}"
    if tried.stuck:
        message += f". {tried.stuck}"
    if tried.timed_out and tried.backend == "nccl":
        message += f". {RESET}"
    return Verdict(GATE, "failed", message, (Finding("failure", tried.backend, message, evidence),), figures)


def _words(said: Mapping[str, Any]) -> str:
    """``joined the others``, for what a rank said last."""
    words = {
        "nothing": "did not start",
        "started": "has not imported torch",
        "imported": "has imported torch, and not joined the others",
        "joined": "has joined the others, and added nothing",
        "left": "was done",
    }
    stage = str(said.get("stage"))
    return f"had added {_shown(said['bytes'])}" if stage == "added" else words.get(stage, stage)


def _shown(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
