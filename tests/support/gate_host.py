"""Small real environments for gate modules to judge, and running a gate as the engine does."""

from __future__ import annotations

import struct
import subprocess
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.module_host import ModuleHost, plan_module

from crossgrade.modules.contract import Change, Module, Outcome, Unchanged
from crossgrade.store.generation import Generation, GenerationState
from crossgrade.store.layout import Store

SERVER = Path(__file__).with_name("small_server.py")


def run_gate(module: Module[Any, Any], arguments: Any, host: ModuleHost) -> Outcome:
    """Inspect, plan and apply; a task that did not fail must then have nothing left to do."""
    planned = plan_module(module, arguments, host)
    assert isinstance(planned, Change), planned
    outcome = module.apply(arguments, planned, host)
    assert outcome.verdict is not None
    assert outcome.changed is False
    assert not host.steps, "a gate has nothing to undo"
    if not outcome.failed:
        again = plan_module(module, arguments, host)
        assert isinstance(again, Unchanged), again
        assert again.values == outcome.values
    return outcome


def make_venv(path: Path) -> Path:
    """A venv without pip; gives its site-packages."""
    venv.EnvBuilder(symlinks=True).create(path)
    return next((path / "lib").glob("python3*")) / "site-packages"


def add_generation(
    store: Store,
    number: int,
    *,
    state: GenerationState = "ready",
    environment: Mapping[str, str] | None = None,
    manifest: str = "",
) -> Path:
    """A generation with a venv of its own that holds the small server; gives its site-packages."""
    generation = Generation(
        number=number,
        identity=f"identity-{number}",
        origin="built",
        state=state,
        created="2026-12-01T00:00:00Z",
        environment=dict(environment or {}),
        manifest=manifest or f"manifest-{number}",
    )
    store.write_generation(generation)
    site = make_venv(store.venv(number))
    (site / "small_server.py").write_text(SERVER.read_text())
    return site


def activate(store: Store, number: int) -> None:
    link = store.root / "active-env"
    link.unlink(missing_ok=True)
    link.symlink_to(store.venv(number))
    store.set_active_link(link)


def tree(root: Path) -> dict[str, tuple[int, int]]:
    """Every entry below `root` with its size and time of change."""
    return {
        str(path.relative_to(root)): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
    }


def fatbin(architecture: int) -> bytes:
    """A container with one piece of machine code, laid out as nvcc writes it (see `inspect.fatbin`)."""
    code = b"\x7fELF" + bytes(32 * 1024)
    entry = struct.pack("<HHIQIIHHIIIQQQ", 2, 0x101, 64, len(code), 0, 0, 0, 1, architecture, 0, 0, 0, 0, 0)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry) + len(code)) + entry + code


def build_with_device_code(target: Path, architecture: int) -> Path:
    """A shared library with a section .nv_fatbin."""
    data = target.with_suffix(".fatbin")
    data.write_bytes(fatbin(architecture))
    source = target.with_suffix(".s")
    source.write_text(f'.section .nv_fatbin,"a",@progbits\n.incbin "{data}"\n.section .note.GNU-stack\n')
    subprocess.run(["gcc", "-shared", "-o", str(target), str(source)], check=True, capture_output=True)
    source.unlink()
    data.unlink()
    return target
