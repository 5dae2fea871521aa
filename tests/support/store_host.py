"""The small real host, with real resolving by uv, and counting what goes to the network or starts a program."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.module_host import ModuleHost, arguments_for, run_module

from crossgrade.modules import python_env, venv_backup
from crossgrade.modules.contract import Change, Lock, LockRequest, Module
from crossgrade.modules.uv import resolve_lock
from crossgrade.process import Completed


@dataclass
class StoreHost(ModuleHost):
    """`resolved` are the requests that were resolved, `started` the programs that were run, in order."""

    resolved: list[LockRequest] = field(default_factory=list)
    started: list[tuple[str, ...]] = field(default_factory=list)

    def planning(self) -> StoreHost:
        return StoreHost(self.directory, self.variables, True, self.environment, self.run_id, locks=self.locks)

    def in_run(self, run_id: str) -> StoreHost:
        """The same machine in another run."""
        return StoreHost(self.directory, self.variables, False, self.environment, run_id, locks=self.locks)

    def resolve(self, request: LockRequest) -> Lock:
        if request not in self.locks:
            self.resolved.append(request)
            self.locks[request] = resolve_lock(request, self.run, self.environment)
        return self.locks[request]

    def run(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
        input_text: str | None = None,
        log_name: str = "",
        shown: Callable[[str], str] | None = None,
    ) -> Completed:
        self.started.append(tuple(argv))
        return super().run(
            argv,
            environment=environment,
            cwd=cwd,
            timeout=timeout,
            input_text=input_text,
            log_name=log_name,
            shown=shown,
        )


class KilledError(BaseException):
    """Stands for SIGKILL: no handler of the module catches it, and nothing after it runs."""


def undo_steps(module: Module[Any, Any], host: ModuleHost) -> list[str]:
    """Undo the steps that are on record, twice each, as a recovery that is interrupted itself would."""
    said = []
    for step in reversed(host.steps):
        said.append(module.undo(step.undo, host))
        module.undo(step.undo, host)
    host.steps.clear()
    return said


def planned_change(module: Module[Any, Any], arguments: Mapping[str, Any], host: ModuleHost) -> Change:
    parsed = arguments_for(module, arguments)
    planned = module.plan(parsed, module.inspect(parsed, host))
    assert isinstance(planned, Change), planned
    return planned


def python(program: str | Path, code: str) -> str:
    return subprocess.run([str(program), "-I", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def working_env(path: Path, host: ModuleHost) -> Path:
    run_module(python_env.MODULE, {"path": str(path), "requirements": ["six==1.16.0"]}, host)
    host.steps.clear()
    return path


def adopted(host: ModuleHost) -> Path:
    path = working_env(host.directory / "ml-env", host)
    run_module(venv_backup.MODULE, {"path": str(path)}, host)
    host.steps.clear()
    return path


def build_candidate(host: ModuleHost, **more: Any) -> dict[str, Any]:
    return dict(run_module(python_env.MODULE, {"requirements": ["six==1.17.0"], **more}, host).values)
