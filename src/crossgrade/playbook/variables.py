"""Variables in layers: Ansible's documented precedence decides who wins, not the order of assignment."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

from crossgrade.playbook.markers import OMIT, Unknown
from crossgrade.playbook.positions import Spot

__all__ = ["OMIT", "Layer", "Precedence", "Scope", "ScopeTable", "SpotTable", "Unknown"]


class Precedence(IntEnum):
    """Sources of variables, from low to high (Ansible's user guide, "Understanding variable precedence")."""

    ROLE_DEFAULTS = 5
    GROUP_ALL_VARS = 10
    GROUP_VARS = 20
    HOST_VARS = 30
    FACTS = 40
    PLAY_VARS = 50
    PLAY_VARS_FILES = 60
    ROLE_VARS = 65
    BLOCK_AND_TASK_VARS = 70
    INCLUDED_VARS = 80
    SET_FACTS = 90
    PARAMETERS = 100
    EXTRA_VARS = 110
    MAGIC = 120
    LOOP = 130


class ScopeTable(Mapping[str, "Scope"]):
    """Variables of several hosts by their names (`hostvars`), each worked out when it is asked for."""


class SpotTable(Protocol):
    """Knows where each variable of a layer stands."""

    def at(self, *keys: Hashable) -> Spot: ...


@dataclass(frozen=True)
class Layer:
    """Variables of one source. With `templated` false they are data: `{{` in them is only text."""

    precedence: Precedence
    values: Mapping[str, Any]
    templated: bool = True
    spot: SpotTable | None = None


class Scope:
    """Immutable layers of variables. A new layer lies above those of its precedence, below all higher.

    `directories` are where files are looked for, the first place first. With `unknown_origin`, a variable that is not
    there may be one that only the run sets, by what is named here.
    """

    __slots__ = ("_layers", "directories", "unknown_origin")

    def __init__(
        self, layers: tuple[Layer, ...] = (), directories: tuple[Path, ...] = (), unknown_origin: str = ""
    ) -> None:
        self._layers = layers  # the winning one first
        self.directories = directories
        self.unknown_origin = unknown_origin

    def looking_in(self, directories: tuple[Path, ...]) -> Scope:
        """The same, with other directories."""
        return Scope(self._layers, directories, self.unknown_origin)

    def with_layers_of(self, other: Scope, precedences: Collection[Precedence]) -> Scope:
        """The same, with the other's layers of these precedences in the place of its own."""
        kept = [layer for layer in self._layers if layer.precedence not in precedences]
        taken = [layer for layer in other.layers if layer.precedence in precedences]
        layers = sorted([*kept, *taken], key=lambda layer: -layer.precedence)  # it keeps the order among equals
        return Scope(tuple(layers), self.directories, self.unknown_origin)

    def with_unknown(self, origin: str) -> Scope:
        """The same, where what is not defined is not known."""
        return Scope(self._layers, self.directories, origin)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The winning one first."""
        return self._layers

    def with_layer(
        self,
        precedence: Precedence,
        values: Mapping[str, Any],
        *,
        templated: bool = True,
        spot: SpotTable | None = None,
    ) -> Scope:
        """This scope with one more layer. Give `templated=False` for facts, results and loop items."""
        if not values:
            return self
        at = next((at for at, layer in enumerate(self._layers) if layer.precedence <= precedence), len(self._layers))
        layer = Layer(precedence, values, templated, spot)
        return Scope((*self._layers[:at], layer, *self._layers[at:]), self.directories, self.unknown_origin)

    def find(self, name: str) -> Layer | None:
        """The layer that gives this variable, or None."""
        for layer in self._layers:
            if name in layer.values:
                return layer
        return None

    def lookup(self, name: str) -> Any:
        """The raw value. Raises KeyError."""
        layer = self.find(name)
        if layer is None:
            raise KeyError(name)
        return layer.values[name]

    def __contains__(self, name: object) -> bool:
        return any(name in layer.values for layer in self._layers)

    def names(self) -> set[str]:
        return {name for layer in self._layers for name in layer.values}

    def flatten(self) -> dict[str, Any]:
        """All variables with their raw values."""
        flat: dict[str, Any] = {}
        for layer in reversed(self._layers):
            flat.update(layer.values)
        return flat
