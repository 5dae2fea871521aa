"""`test` and `lint`, for whoever works on crossgrade in a checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from crossgrade.commands.common import guarded
from crossgrade.errors import WrongOptionsError

_LINTERS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("lint-imports",),
)
_FIXERS = (("ruff", "check", "--fix", "."), ("ruff", "format", "."))


def _in_checkout() -> None:
    if not Path("tests").is_dir() or not Path("pyproject.toml").is_file():
        raise WrongOptionsError("this command works in a checkout of crossgrade", remedy="Change to its top folder.")


def _run(argv: tuple[str, ...]) -> int:
    """Run a tool of the venv that crossgrade runs in, with its output going straight to the terminal."""
    program = Path(sys.executable).parent / argv[0]
    if not program.exists():
        raise WrongOptionsError(
            f"{argv[0]} is not installed here", remedy="Install the `dev` extra: pip install -e '.[dev]'"
        )
    return subprocess.run([str(program), *argv[1:]], check=False).returncode


def test_command(*, slow: bool, faults: bool) -> int:
    """Run pytest; its exit code becomes ours. `faults` runs the fault injection in full, and nothing else.

    Otherwise the tests run on all cores first, and then those that need the machine to themselves. The long tests use
    the cores by themselves.
    """

    def body() -> int:
        _in_checkout()
        if faults and not slow:
            return _run(("pytest", "tests/faults", "-m", "not slow"))
        rest = ["alone", *(["slow"] if slow else []), *(["faults"] if faults else [])]
        excluded = [mark for mark, wanted in (("slow", slow), ("faults", faults)) if not wanted]
        together = " and ".join(f"not {mark}" for mark in ("alone", "slow", "faults"))
        alone = " and ".join([f"({' or '.join(rest)})", *(f"not {mark}" for mark in excluded)])
        codes = [
            _run(("pytest", "-m", together, "-n", "auto", "--dist", "loadfile")),
            _run(("pytest", "-m", alone)),
        ]
        return max(codes)

    return guarded(body)


def code_is_clean(*, fix: bool) -> bool:
    """Run every linter even when one fails. Raises WrongOptionsError outside of a checkout."""
    _in_checkout()
    codes = [_run(argv) for argv in (_FIXERS if fix else ()) + _LINTERS]
    return not any(codes)
