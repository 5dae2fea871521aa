"""All facts of a server, each section asked for when somebody wants it, and once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from crossgrade.inspect.query import Runner, run_query
from crossgrade.jsontype import JSON

if TYPE_CHECKING:
    from crossgrade.facts.compilers import CompilerFacts
    from crossgrade.facts.gpus import GpuFacts
    from crossgrade.facts.holders import HolderFacts
    from crossgrade.facts.system import SystemFacts
    from crossgrade.facts.toolkits import ToolkitsFacts
    from crossgrade.facts.units import UnitFacts
    from crossgrade.facts.venv import VenvFacts

SECTIONS = ("system", "gpus", "toolkits", "compilers", "venv", "holders", "units")


@dataclass
class Server:
    """The facts of this machine, as sections that are read on first use and kept for as long as this object is.

    Make one for a run: the same GPU is then asked once. `venv` is the environment that it is about, `root` the folder
    of the store. `system` is where files are looked up, for tests.
    """

    venv: Path | None = None
    root: Path | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    runner: Runner = run_query
    system: Path = Path("/")
    home: Path | None = None

    @cached_property
    def gpus(self) -> GpuFacts:
        from crossgrade.facts.gpu_reading import read_gpus

        return read_gpus(self.environment, self.runner, system=self.system)

    @cached_property
    def toolkits(self) -> ToolkitsFacts:
        from crossgrade.facts.toolkits import read_toolkits

        return read_toolkits(
            self.environment,
            self.runner,
            venv=self.venv,
            store_toolkits=None if self.root is None else self.root / "store" / "toolkits",
            system=self.system,
        )

    @cached_property
    def compilers(self) -> CompilerFacts:
        from crossgrade.facts.compilers import read_compilers

        return read_compilers(self.environment, self.runner, self.toolkits.toolkits)

    @cached_property
    def system_facts(self) -> SystemFacts:
        from crossgrade.facts.system import read_system

        home = Path(self.environment.get("HOME") or "/")
        named = (self.root, self.venv, home / ".cache", Path(self.environment.get("TMPDIR") or "/tmp"))  # noqa: S108
        return read_system(self.environment, places=[place for place in named if place], system=self.system)

    @cached_property
    def venv_facts(self) -> VenvFacts | None:
        """None where no environment is named."""
        from crossgrade.facts.venv import read_venv

        return None if self.venv is None else read_venv(self.venv, self.environment, self.runner)

    @cached_property
    def holders(self) -> HolderFacts:
        from crossgrade.facts.holders import read_holders

        return read_holders(self.venv, self.gpus.gpus, system=self.system)

    @cached_property
    def units(self) -> UnitFacts:
        from crossgrade.facts.units import read_units

        home = self.home or Path(self.environment.get("HOME") or "/")
        return read_units(self.venv, self.environment, self.runner, system=self.system, home=home)

    def section(self, name: str) -> Any:
        """A section by its name in `SECTIONS`: a frozen dataclass; None for the venv where none is named."""
        attribute = {"system": "system_facts", "venv": "venv_facts"}.get(name, name)
        return getattr(self, attribute)

    def to_json(self, sections: Sequence[str] = SECTIONS) -> dict[str, JSON]:
        """The sections as plain data, tuples as lists."""
        return {name: plain(self.section(name)) for name in sections}


def plain(value: Any) -> JSON:
    """A section as JSON has it."""
    return None if value is None else cast("JSON", _lists(asdict(value)))


def _lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _lists(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, frozenset)):
        return [_lists(item) for item in value]
    return value
