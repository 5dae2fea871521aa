"""What all gates share: finding the candidate, keeping verdicts, and turning a verdict into a task's outcome.

A verdict on a generation holds for as long as the generation is what it was: the key under which it is kept
is made of the gate, the arguments that matter and the digest of the generation's manifest. A verdict on a
plain path is not kept; it holds only within the run, and only while no file below the path has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from crossgrade.errors import TaskError
from crossgrade.gates.verdict import Verdict
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import ApplyContext, Change, HostView, Outcome, Plan, Sight, Unchanged
from crossgrade.store.generation import Generation
from crossgrade.store.layout import generation_environment

OnNotRun = Literal["fail", "warn"]

JUDGED_AT = "judged_at"  # the figure that says when a verdict was given: UTC, RFC 3339

# Where Python looks for modules beside the environment. From the shell that crossgrade was started in they
# would let a broken candidate import somebody else's files.
_LEADS_ASTRAY = ("PYTHONHOME", "PYTHONPATH", "PYTHONPYCACHEPREFIX", "PYTHONSTARTUP")

# Verdicts on plain paths, within this process: key of the check → the state of the tree when it passed.
_passed_paths: dict[str, tuple[str, Verdict]] = {}


@dataclass(frozen=True)
class Candidate:
    """What a gate looks at: a venv, and the generation that it belongs to (None for a plain path)."""

    venv: Path
    generation: Generation | None = None

    @property
    def title(self) -> str:
        return f"generation {self.generation.number}" if self.generation else str(self.venv)

    @property
    def number(self) -> int | None:
        return self.generation.number if self.generation else None

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"


@dataclass(frozen=True)
class GateState:
    """What `inspect` found: the candidate, the key of this check of it, and the verdict that still holds."""

    candidate: Candidate
    key: str
    recorded: Verdict | None = None


def find_candidate(generation: int | None, path: Path | None, host: HostView) -> Candidate:
    """The candidate that a task names by `generation` or by `path`; predicted ones count.

    Raises TaskError when it names none or both, or something that is not there.
    """
    if (generation is None) == (path is None):
        raise TaskError(
            "a gate checks one environment: give either `generation` or `path`",
            remedy='For what python_env built: generation: "{{ candidate.generation }}".',
        )
    if path is not None:
        venv = host.playbook_directory / path
        if not venv.is_dir() and host.predicted("path", str(venv)) is None:
            raise TaskError(f"there is no directory {venv}", remedy="`path` names a venv, such as ~/ml-env.")
        return Candidate(venv)
    known = {found.number: found for found in host.generations()}
    if generation not in known:
        there = ", ".join(map(str, known)) or "none"
        raise TaskError(
            f"there is no generation {generation} in {host.store.root} (there: {there})",
            remedy="`crossgrade status` lists the generations that are there.",
        )
    return Candidate(host.store.venv(known[generation].number), known[generation])


def environment_of_today(path: Path | None, host: HostView) -> Path | None:
    """The environment that people work with: the one that a task names, else the active one; None where there is none.

    Raises TaskError for a path that is not there.
    """
    if path is not None:
        named = host.playbook_directory / path
        if not named.is_dir():
            raise TaskError(f"there is no directory {named}", remedy="`path` names a venv, such as ~/ml-env.")
        return named
    active = host.active()
    if active is None:
        return None
    venv, link = host.store.venv(active), host.store.active_link
    if link is not None and link.resolve() == venv.resolve():  # as processes and units name it
        venv = link
    return venv if venv.is_dir() else None  # a plan may foresee one that is not there yet


def refuse_unfinished(candidate: Candidate) -> None:
    """Raises TaskError for a generation that is still being built, or whose files are gone."""
    if candidate.generation is not None and candidate.generation.state == "building":
        raise TaskError(
            f"{candidate.title} is still being built, or its build was interrupted",
            remedy="`crossgrade status` says what was interrupted; `upgrade --resume` finishes it.",
        )
    if not candidate.venv.is_dir():
        raise TaskError(f"{candidate.title} has no directory {candidate.venv}")


@dataclass(frozen=True)
class Present:
    """A `Sight` of the environments as they are: what a run judges."""

    context: ApplyContext

    @property
    def host(self) -> HostView:
        return self.context.host

    def venv(self, path: Path, generation: Generation | None) -> Path:
        refuse_unfinished(Candidate(path, generation))
        return path

    def require_certain(self, venv: Path) -> None:
        """What is there is certain."""

    def now(self, path: str) -> str:
        return path

    def progress(self, message: str) -> None:
        self.context.progress(message)


def program_environment(candidate: Candidate, host: HostView, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment for programs of a candidate: the task's, then the generation's, then `extra`.

    As in an activated venv its programs come first on PATH. Python writes no bytecode, so that nothing
    changes in the venv. What would make Python import from elsewhere is taken over from a playbook only, not
    from the shell that crossgrade runs in.
    """
    environment = dict(host.environment)
    for name in _LEADS_ASTRAY:
        if environment.get(name) == os.environ.get(name):
            environment.pop(name, None)
    own: dict[str, str] = {"VIRTUAL_ENV": str(candidate.venv)}
    if candidate.generation is not None:
        own.update(generation_environment(host.store, candidate.generation))
    if "PATH" not in own:
        own["PATH"] = os.pathsep.join([str(candidate.venv / "bin"), environment.get("PATH", os.defpath)])
    return {**environment, **own, **(extra or {}), "PYTHONDONTWRITEBYTECODE": "1"}


def library_path(environment: Mapping[str, str], sight: Sight) -> list[str]:
    """Where the directories of LD_LIBRARY_PATH lie, without empty entries: those stand for the working directory."""
    return [sight.now(entry) for entry in environment.get("LD_LIBRARY_PATH", "").split(":") if entry]


def driver(named: str | None) -> str | None:
    """The NVIDIA driver to judge for: the one that a task names, or this machine's; None where there is none.

    Raises TaskError for a text that is no version.
    """
    from crossgrade.inspect.machine import driver_version
    from crossgrade.inspect.toolkit import is_driver_version

    if named is None:
        return driver_version()
    if not is_driver_version(named):
        raise TaskError(f"`driver`: {named!r} is not a driver's version", remedy='Write it as "580" or "580.95.05".')
    return named


def lacking_gpu(needed: bool) -> str:
    """Why a gate that starts a server on a GPU cannot run on this machine; "" when it can, or needs none."""
    from crossgrade.inspect.machine import NO_DRIVER, driver_version

    return NO_DRIVER if needed and driver_version() is None else ""


def unless_not_run_for_another_reason(state: GateState, obstacle: str) -> GateState:
    """Forget a recorded `not run` whose reason is not today's: the gate can run now, or cannot for another reason."""
    recorded = state.recorded
    if recorded is not None and recorded.outcome == "not run" and recorded.reason != obstacle:
        return replace(state, recorded=None)
    return state


def verdict_key(gate: str, candidate: Candidate, arguments: Mapping[str, Any]) -> str:
    """The name of a file: the gate, and the digest of the arguments that matter and of what was judged."""
    generation = candidate.generation
    subject = [generation.manifest, dict(generation.environment)] if generation else str(candidate.venv)
    text = json.dumps([gate, arguments, subject], sort_keys=True, default=str)
    return f"{gate}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def gate_state(gate: str, candidate: Candidate, host: HostView, arguments: Mapping[str, Any]) -> GateState:
    """Look up whether this gate has judged this candidate with these arguments before."""
    key = verdict_key(gate, candidate, arguments)
    if candidate.generation is not None:
        return GateState(candidate, key, host.verdict(candidate.generation.number, key))
    if key in _passed_paths:
        state, verdict = _passed_paths[key]
        if state == _state_of_tree(candidate.venv):
            return GateState(candidate, key, verdict)
    return GateState(candidate, key)


def plan_gate(state: GateState, what: str, on_not_run: OnNotRun) -> Plan:
    """Unchanged while a verdict holds that lets the run go on, else the check as a change.

    `what` is what the gate does, as in "check the ABI of": the name of the candidate is appended.
    """
    recorded = state.recorded
    if recorded is not None and recorded.outcome == "passed":
        return Unchanged(f"{state.candidate.title} passed{_when(recorded)}", verdict_values(recorded))
    if recorded is not None and recorded.outcome == "not run" and on_not_run == "warn":
        return Unchanged(f"not run{_when(recorded)}: {recorded.reason}", verdict_values(recorded))
    summary = f"{what} {state.candidate.title}"
    if recorded is not None:
        summary += f" again ({recorded.outcome}{_when(recorded)})"
    return Change(summary, values_known=False)


def conclude(verdict: Verdict, state: GateState, on_not_run: OnNotRun, context: ApplyContext) -> Outcome:
    """Put the verdict on record and say what it means for the task."""
    candidate = state.candidate
    verdict = replace(verdict, figures={**verdict.figures, JUDGED_AT: _now()})
    if candidate.generation is not None:
        context.record_verdict(candidate.generation.number, state.key, verdict)
    elif verdict.passed or (verdict.outcome == "not run" and on_not_run == "warn"):
        _passed_paths[state.key] = (_state_of_tree(candidate.venv), verdict)
    else:
        _passed_paths.pop(state.key, None)
    return outcome_of(verdict, on_not_run)


def outcome_of(verdict: Verdict, on_not_run: OnNotRun) -> Outcome:
    """What a verdict means for the task. Pure."""
    not_run = verdict.outcome == "not run"
    message = verdict.reason
    if not_run:
        message = f"not run: {verdict.reason}"
        if on_not_run == "fail":
            message += " (a gate that did not run did not pass; `on_not_run: warn` lets the run go on)"
    return Outcome(
        values=verdict_values(verdict),
        changed=False,
        failed=verdict.outcome == "failed" or (not_run and on_not_run == "fail"),
        message=message,
        verdict=verdict,
    )


def verdict_values(verdict: Verdict) -> dict[str, Any]:
    """What `register` sees of a gate."""
    return {
        "verdict": verdict.outcome,
        "reason": verdict.reason,
        "figures": dict(verdict.figures),
        "findings": [finding.to_json() for finding in verdict.findings],
    }


def text_map(values: Mapping[str, JSON], what: str) -> dict[str, str]:
    """Environment variables from YAML, where 1 and true are no texts. Raises TaskError for lists and maps."""
    result = {}
    for name, value in values.items():
        if value is None or isinstance(value, list | dict):
            raise TaskError(f"{what}: {name} must be a text or a number, not {json.dumps(value)}")
        result[str(name)] = str(value).lower() if isinstance(value, bool) else str(value)
    return result


def _when(verdict: Verdict) -> str:
    """``" on 2026-12-01"``, the day of a recorded verdict."""
    judged = verdict.figures.get(JUDGED_AT)
    return f" on {judged[:10]}" if isinstance(judged, str) else ""


def _now() -> str:
    from datetime import datetime, timezone

    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _state_of_tree(root: Path) -> str:
    """A digest over names, sizes and times: it differs as soon as anything below `root` was written."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(files):
            status = os.lstat(os.path.join(folder, name))  # noqa: PTH118  # strings, in bulk
            line = f"{folder}\0{name}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}\n"
            digest.update(os.fsencode(line))
    return digest.hexdigest()
