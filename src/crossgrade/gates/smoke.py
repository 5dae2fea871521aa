"""The smoke gate: do the modules that the server needs import, in the environment that it will have?

`run_imports` gathers the evidence with real processes; `judge_smoke` is pure.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossgrade.errors import TaskError
from crossgrade.gates.verdict import Finding, Verdict, counted, joined
from crossgrade.jsontype import JSON
from crossgrade.process import Completed, run_process, signal_name

GATE = "smoke"
# What the loader says of a library that it does not find, as ctypes and ImportError pass it on.
_NOT_OPENED = re.compile(r"(\S+\.so[.\d]*): cannot open shared object file")
OUTPUT_LINES = 20  # of a failed import's output, kept as evidence

# Runs in the environment under test, with the module's name as an argument. What the module itself prints may
# be anything, so the answer is the line that begins with a word made up for this run.
IMPORTER = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]  # the current directory is no part of the environment
import importlib, json, time, traceback
word, name = sys.argv[1:]
del sys.argv[1:]
answer = {}
began = time.perf_counter()
try:
    importlib.import_module(name)
except BaseException as error:
    lines = "".join(traceback.format_exception_only(type(error), error)).rstrip().splitlines()
    answer = {
        "exception": type(error).__name__,
        "last_line": lines[-1],
        "message": str(error),
        "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
    }
answer["seconds"] = time.perf_counter() - began
sys.stderr.write("\\n" + word + json.dumps(answer) + "\\n")
sys.stderr.flush()
"""


@dataclass(frozen=True)
class ImportOutcome:
    """One import in a process of its own.

    `error` is None when the import succeeded and the process ended with code 0; else one line that says what
    happened: the traceback's last line, the signal, or the time limit. `exception` is the exception's type.
    `seconds` is the time of the import alone where it ended, else that of the whole process. `output` is the
    end of what a failed import printed, the traceback included.
    """

    module: str
    seconds: float
    returncode: int
    error: str | None = None
    exception: str | None = None
    message: str = ""
    output: str = ""

    @property
    def succeeded(self) -> bool:
        return self.error is None

    def to_json(self) -> dict[str, JSON]:
        return {
            "module": self.module,
            "seconds": round(self.seconds, 3),
            "returncode": self.returncode,
            "error": self.error,
            "exception": self.exception,
            "message": self.message,
            "output": self.output,
        }


def run_imports(
    python: Path,
    imports: Sequence[str],
    *,
    environment: Mapping[str, str],
    timeout: float,
    cwd: Path | None = None,
) -> tuple[ImportOutcome, ...]:
    """Import each module with `python`, each in its own process, at most `timeout` seconds each.

    `environment` is the whole environment, the one that the generation's server gets. (Python's isolated mode
    is not used: it would ignore that environment's PYTHONPATH, which the server does not.) The current directory
    is `cwd`, else an empty one, and is not on the module path. No bytecode is written. Raises
    TaskError for a name that is no dotted identifier, and StartError when `python` cannot be started.
    """
    for name in imports:
        if not all(part.isidentifier() for part in name.split(".")):
            raise TaskError(
                f"smoke check: {name!r} is not the name of a module",
                remedy="name modules as in an import statement, for example flashinfer.comm",
            )
    with contextlib.ExitStack() as stack:
        where = cwd or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crossgrade-smoke-")))
        return tuple(_run_import(python, name, environment, timeout, where) for name in imports)


def _run_import(python: Path, name: str, environment: Mapping[str, str], timeout: float, cwd: Path) -> ImportOutcome:
    word = f"crossgrade-{secrets.token_hex(8)}:"
    completed = run_process(
        [str(python), "-B", "-X", "faulthandler", "-c", IMPORTER, word, name],
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=cwd,
        timeout=timeout,
    )
    return read_import(name, word, completed)


def read_import(name: str, word: str, completed: Completed) -> ImportOutcome:
    """What a process of IMPORTER says about an import. Pure."""
    printed, found, rest = completed.stderr.rpartition(f"\n{word}")
    answer: dict[str, JSON] = {}
    if found:
        answer = json.loads(rest.partition("\n")[0])
    else:
        printed = completed.stderr
    exception = answer.get("exception")
    signal = signal_name(completed.returncode)
    if completed.timed_out:
        error: str | None = f"not imported within its time limit ({completed.seconds:.0f} s)"
    elif exception:
        error = str(answer["last_line"])
    elif signal:
        error = f"{signal} {'when Python ended, after the import' if found else 'during the import'}"
    elif not found:
        error = f"the process ended in the middle of the import ({completed.outcome()})"
    elif completed.returncode != 0:
        error = f"the import succeeded, but Python then ended with {completed.outcome()}"
    else:
        error = None
    if completed.timed_out and not found:
        exception = None
    seconds = answer.get("seconds")
    text = "\n".join((completed.stdout, printed, str(answer.get("traceback", ""))))
    output = "\n".join([line for line in text.splitlines() if line.strip()][-OUTPUT_LINES:])
    return ImportOutcome(
        module=name,
        seconds=float(seconds) if isinstance(seconds, int | float) else completed.seconds,
        returncode=completed.returncode,
        error=error,
        exception=str(exception) if exception else None,
        message=str(answer.get("message", "")),
        output=output if error else "",
    )


def driver_libraries_that_lack(outcome: ImportOutcome) -> tuple[str, ...]:
    """The NVIDIA driver's libraries for want of which an import failed; none where it failed for anything else, too.

    They come with the driver and never from a dist (``knowledge/driver_libraries.yml``), so that such a failure says
    nothing about the environment. What the import would have met behind it is not known.
    """
    from crossgrade.knowledge import table

    if outcome.succeeded or outcome.exception not in ("ImportError", "OSError", "RuntimeError"):
        return ()
    lacking = tuple(dict.fromkeys(_NOT_OPENED.findall(outcome.message)))
    driver = {str(row["soname"]) for row in table("driver_libraries")}
    if "undefined symbol" in outcome.message or not driver.issuperset(lacking):
        return ()
    return lacking


def judge_smoke(outcomes: Sequence[ImportOutcome], *, driver: bool = True) -> Verdict:
    """Passed when every import succeeded; without any import the gate did not run.

    `driver` is whether this machine has the NVIDIA driver. Without one, imports that fail for want of its libraries
    alone did not run either; any other failure fails the gate.
    """
    if not outcomes:
        return Verdict(GATE, "not run", "no module to import was named")
    lacking = {} if driver else {one.module: found for one in outcomes if (found := driver_libraries_that_lack(one))}
    failed = [outcome for outcome in outcomes if not outcome.succeeded and outcome.module not in lacking]
    findings = [Finding("failure", outcome.module, str(outcome.error), outcome.to_json()) for outcome in failed]
    findings += [
        Finding(
            "warning", one.module, f"not run: needs {joined(lacking[one.module])} of the NVIDIA driver", one.to_json()
        )
        for one in outcomes
        if one.module in lacking
    ]
    figures: dict[str, JSON] = {
        "imports": len(outcomes),
        "failed": len(failed),
        "not_run": len(lacking),
        "seconds": {outcome.module: round(outcome.seconds, 3) for outcome in outcomes},
    }
    names = joined(outcome.module for outcome in outcomes if outcome.succeeded)
    if not failed and lacking:
        sonames = joined(dict.fromkeys(name for found in lacking.values() for name in found))
        imported = f"; imported: {names}" if names else ""
        why = f"{joined(lacking)}: no NVIDIA driver on this machine, and so no {sonames}{imported}"
        return Verdict(GATE, "not run", why, tuple(findings), figures)
    if not failed:
        return Verdict(GATE, "passed", f"{counted(len(outcomes), 'module')} imported: {names}", (), figures)
    first, *others = failed
    reason = f"import {first.module}: {first.error}"
    if others:
        reason += f" (and {counted(len(others), 'module')} more: {joined(o.module for o in others)})"
    return Verdict(GATE, "failed", reason, tuple(findings), figures)
