"""The venv that a build runs in: the candidate's torch and the project's build requirements, by an exact, hashed lock.

    STORE/build-environments/DIGEST/   a venv; build-environment.json, written last, marks it complete

Its files are links into uv's cache, as in a deep plan (`virtual_env.py` says why not hard links): torch and the
libraries it needs take 5 GB, and the candidate installs the same wheels anyway. Where the cache has gone since, the
venv is made anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from crossgrade.errors import TaskError
from crossgrade.modules import uv
from crossgrade.modules.contract import ApplyContext, HostView, Lock, LockRequest
from crossgrade.store.atomic import write_json
from crossgrade.store.layout import remove_path

RECORD = "build-environment.json"
# Part of every digest: raise it when the same lock is laid out in another way.
LAYOUT = 1
_STRINGS = r"(?:\s|,|#[^\n]*|\"[^\"\n]*\"|'[^'\n]*')*"
_REQUIRES = re.compile(rf"^requires\s*=\s*\[(?P<list>{_STRINGS})\]", re.MULTILINE)
_BACKEND = re.compile(r"""^build-backend\s*=\s*["']([^"']+)["']""", re.MULTILINE)
_STRING = re.compile(r"#[^\n]*|\"([^\"\n]*)\"|'([^'\n]*)'")
# Back ends that ask for these only when a build begins (PEP 517's get_requires_for_build_wheel), too late for a lock.
_ASKED_LATER = {"scikit_build_core": ("cmake>=3.26", "ninja"), "mesonpy": ("ninja",)}


@dataclass(frozen=True)
class BuildEnvironment:
    """`torch` is the version in the lock, "" without one. `ready` says that the venv is there and whole."""

    request: LockRequest
    lock: Lock
    venv: Path
    torch: str
    ready: bool

    @property
    def python(self) -> str:
        return str(self.venv / "bin" / "python")


def build_system(pyproject: str) -> tuple[tuple[str, ...], str]:
    """The requirements and the back end in the text of a pyproject.toml (PEP 518), by default setuptools. Pure."""
    table = re.search(r"^\[build-system\]\s*$(.*?)(?=^\[(?!\s*[\"'])|\Z)", pyproject, re.MULTILINE | re.DOTALL)
    text = table[1] if table else ""
    backend = found[1] if (found := _BACKEND.search(text)) else "setuptools.build_meta"
    listed = _REQUIRES.search(text)
    if listed is None:
        return ("setuptools>=40.8.0", "wheel"), backend
    stated = tuple(one or other for one, other in _STRING.findall(listed["list"]) if one or other)
    later = _ASKED_LATER.get(backend.partition(".")[0], ())
    return stated + tuple(each for each in later if name_of(each) not in {name_of(one) for one in stated}), backend


def name_of(requirement: str) -> str:
    """The normalized name in a requirement. Raises TaskError for what is none."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement as error:
        raise TaskError(f"{requirement!r} is no requirement: {error}") from error


def torch_requirement(given: str) -> str:
    """`torch==2.14.1` from that or from `2.14.1`; a local part (`+cu130`) is kept."""
    return f"torch=={given}" if re.match(r"\d", given) else given


def find_environment(request: LockRequest, python_abi: str, host: HostView) -> BuildEnvironment:
    """Resolve the request and look whether its venv is there. Raises TaskError."""
    lock = host.resolve(request)
    digest = sha256(f"{LAYOUT} {lock.digest} {python_abi}".encode()).hexdigest()[:24]
    venv = host.store.build_environment(digest)
    torch = next((dist.version for dist in lock.dists if dist.name == "torch"), "")
    return BuildEnvironment(request, lock, venv, torch, is_whole(venv))


def is_whole(venv: Path) -> bool:
    """Whether the venv is complete, and none of its links leads to a file that uv's cache has dropped."""
    if not (venv / RECORD).is_file():
        return False
    return all(os.path.exists(os.path.join(folder, name)) for folder, _, names in os.walk(venv) for name in names)  # noqa: PTH110, PTH118 - in bulk


def make(environment: BuildEnvironment, context: ApplyContext) -> None:
    """Make the venv where it is to stay: its scripts name it. Raises TaskError."""
    remove_path(environment.venv)
    variables = uv.index_environment(context.host.environment)
    prompt = f"build-{environment.venv.name[:8]}"
    _must(context, uv.make_venv(environment.request.python, environment.venv, prompt), "make the build environment")
    lock_file = environment.venv / "lock.txt"
    lock_file.write_text(environment.lock.text, encoding="utf-8")
    context.progress(f"installing what the build needs: {len(environment.lock.dists)} dists")
    argv = uv.install_lock(
        environment.python, lock_file, environment.request, compile_bytecode=False, link_mode="symlink"
    )
    _must(context, [*argv, "--quiet"], "fill the build environment", variables)
    write_json(environment.venv / RECORD, {"schema": 1, "layout": LAYOUT, "lock": environment.lock.digest})


def _must(context: ApplyContext, argv: Sequence[str], what: str, environment: dict[str, str] | None = None) -> None:
    completed = context.run(argv, environment=environment or {}, log_name="build-environment.log")
    if not completed.succeeded:
        raise TaskError(
            f"uv could not {what}: {uv.explain(completed.stderr) or completed.outcome()}",
            remedy=f"The whole output is in {context.log_directory / 'build-environment.log'}.",
        )


def unmet(requirements: Sequence[str], environment: BuildEnvironment, *, any_version: bool = False) -> list[str]:
    """The build requirements that the lock does not meet; with `any_version`, those of which it has none at all.

    Pure but for the environment markers, which are of this machine.
    """
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    there = {dist.name: dist.version for dist in environment.lock.dists}
    lacking = []
    for text in requirements:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            lacking.append(text)
            continue
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        version = there.get(canonicalize_name(wanted.name))
        if version is None or not (any_version or wanted.specifier.contains(version, prereleases=True)):
            lacking.append(text)
    return lacking
