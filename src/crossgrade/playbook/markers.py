"""Values that stand for something else than themselves: `omit`, and what is known only after a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from crossgrade.errors import CrossgradeError, Place


class Omit:
    """The type of `OMIT`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "omit"

    def __str__(self) -> str:
        return "omit"


OMIT: Final = Omit()
"""The value of the variable `omit`: an argument that has it counts as not given."""


def is_omit(value: Any) -> bool:
    return value is OMIT


class DependsOnUnknown(CrossgradeError):  # noqa: N818 - not an error: the answer "only after the run"
    """A template needs a value that is known only after the run. In a plan this reads `may change`."""

    def __init__(self, origin: str, *, expression: str = "", place: Place | None = None) -> None:
        super().__init__(f"known only after the run: it depends on {origin}", place=place)
        self.origin = origin
        self.expression = expression


class Unknown:
    """A value that is known only after the run; nearly every use of it raises DependsOnUnknown.

    `origin` says for people where it will come from: `the result of "build"`. What is known all the same
    (`changed`, say) is given as `known`; any other part is unknown in its turn. `certain` says that the value
    will be there, though nobody knows what it will be: `is defined` is true for it.
    """

    __slots__ = ("_certain", "_known", "_origin")

    def __init__(self, origin: str, known: Mapping[str, Any] | None = None, *, certain: bool = True) -> None:
        self._origin = origin
        self._known: Mapping[str, Any] = known or {}
        self._certain = certain

    @property
    def origin(self) -> str:
        return self._origin

    @property
    def known(self) -> Mapping[str, Any]:
        return self._known

    @property
    def certain(self) -> bool:
        return self._certain

    def part(self, name: Any) -> Any:
        """What a template sees as `unknown.name`."""
        if isinstance(name, str) and name in self._known:
            return self._known[name]
        return Unknown(self._origin, certain=False)

    def _needed(self, *_: Any, **__: Any) -> NoReturn:
        raise DependsOnUnknown(self._origin)

    # `__repr__` too: the text of a list shows its items by it, and would hold what no run can give
    __str__ = __repr__ = __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __call__ = _needed
    __int__ = __float__ = __index__ = __add__ = __radd__ = __sub__ = __rsub__ = _needed
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _needed
    __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __pos__ = __format__ = _needed
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __hash__ = _needed


def unknown_in(value: Any) -> Unknown | None:
    """The first unknown value among a value and all that it holds, None when everything is known."""
    return _unknown_in(value, set())


def _unknown_in(value: Any, seen: set[int]) -> Unknown | None:
    if isinstance(value, Unknown):
        return value
    if not isinstance(value, Mapping | list | tuple) or id(value) in seen:
        return None
    seen.add(id(value))
    try:
        for item in value.values() if isinstance(value, Mapping) else value:
            found = _unknown_in(item, seen)
            if found is not None:
                return found
    except DependsOnUnknown as unknown:
        return Unknown(unknown.origin, certain=False)
    except Exception:  # noqa: BLE001 - a lazy item that cannot be worked out: whoever asks for it is told
        return None
    return None
