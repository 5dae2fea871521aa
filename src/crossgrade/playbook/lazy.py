"""Dicts and lists whose templates are expanded when an item is looked at, and then only once.

So a mapping of variables may hold a template that fails, or that refers to another key of the same mapping,
as long as nobody asks for it. They are real dicts and lists for Jinja's filters and tests; every way to look
at an item goes through the expansion.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

Expand = Callable[[Any, Hashable], Any]
"""From an item as written, and its key, to its value. It never raises for what is undefined, but gives a marker."""


class LoopError(Exception):
    """An item needs itself. `key` is where the loop was noticed."""

    def __init__(self, key: Hashable) -> None:
        super().__init__(f'"{key}" is defined by means of itself')
        self.key = key


def _may_expand(value: Any) -> bool:
    return isinstance(value, str | dict | list)


class LazyDict(dict[Any, Any]):
    """A dict of items as written."""

    __slots__ = ("_active", "_expand", "_pending")

    def __init__(self, raw: Mapping[Any, Any], expand: Expand) -> None:
        super().__init__(raw)
        self._expand = expand
        self._pending = {key for key, value in raw.items() if _may_expand(value)}
        self._active: set[Hashable] = set()

    def _settle(self, key: Hashable) -> None:
        if key in self._active:
            raise LoopError(key)
        self._active.add(key)
        try:
            super().__setitem__(key, self._expand(super().__getitem__(key), key))
            self._pending.discard(key)
        finally:
            self._active.discard(key)

    def _settle_all(self) -> None:
        for key in list(self._pending):
            self._settle(key)

    def __getitem__(self, key: Any) -> Any:
        if key in self._pending:
            self._settle(key)
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def __iter__(self) -> Iterator[Any]:  # overridden so that dict(self) asks for the items one by one
        return super().__iter__()

    def items(self) -> Any:
        self._settle_all()
        return super().items()

    def values(self) -> Any:
        self._settle_all()
        return super().values()

    def copy(self) -> dict[Any, Any]:
        return dict(self)

    def __eq__(self, other: object) -> bool:
        return dict(self) == (dict(other) if isinstance(other, LazyDict) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # as for every dict

    def __or__(self, other: Any) -> Any:
        return dict(self) | dict(other)

    def __ror__(self, other: Any) -> Any:
        return dict(other) | dict(self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (dict, (dict(self),))

    def _immutable(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a variable cannot be changed by a template")

    __setitem__ = __delitem__ = __ior__ = _immutable
    pop = popitem = update = setdefault = clear = _immutable


class ScopesSeen(LazyDict):
    """A table of hosts as a template sees it; a host that it does not list may be there all the same (`localhost`)."""

    __slots__ = ("_table",)

    def __init__(self, table: Mapping[str, Any], seen: Callable[[Any], Any]) -> None:
        self._table = table
        super().__init__(dict.fromkeys(table, ""), lambda _, name: seen(table[str(name)]))

    def __missing__(self, name: Any) -> Any:
        if name not in self._table:
            raise KeyError(name)
        return self._expand("", name)

    def __contains__(self, name: object) -> bool:
        return name in self._table


class LazyList(list[Any]):
    """A list of items as written."""

    __slots__ = ("_active", "_expand", "_pending")

    def __init__(self, raw: Sequence[Any], expand: Expand) -> None:
        super().__init__(raw)
        self._expand = expand
        self._pending = {at for at, value in enumerate(raw) if _may_expand(value)}
        self._active: set[int] = set()

    def _settle(self, at: int) -> None:
        if at in self._active:
            raise LoopError(at)
        self._active.add(at)
        try:
            super().__setitem__(at, self._expand(super().__getitem__(at), at))
            self._pending.discard(at)
        finally:
            self._active.discard(at)

    def _plain(self) -> list[Any]:
        for at in list(self._pending):
            self._settle(at)
        return [super(LazyList, self).__getitem__(at) for at in range(len(self))]

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return self._plain()[at]
        position = at + len(self) if isinstance(at, int) and at < 0 else at
        if position in self._pending:
            self._settle(position)
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[Any]:
        for at in range(len(self)):
            yield self[at]

    def __reversed__(self) -> Iterator[Any]:
        return iter(self._plain()[::-1])

    def __contains__(self, value: object) -> bool:
        return any(item is value or item == value for item in self)

    def __eq__(self, other: object) -> bool:
        return self._plain() == (other._plain() if isinstance(other, LazyList) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # as for every list

    def __lt__(self, other: Any) -> bool:
        return self._plain() < list(other)

    def __add__(self, other: Any) -> Any:
        return self._plain() + list(other) if isinstance(other, list) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return list(other) + self._plain() if isinstance(other, list) else NotImplemented

    def __mul__(self, times: Any) -> Any:
        return self._plain() * times

    __rmul__ = __mul__

    def index(self, *arguments: Any) -> int:
        return self._plain().index(*arguments)

    def count(self, value: Any) -> int:
        return self._plain().count(value)

    def copy(self) -> list[Any]:
        return self._plain()

    def __repr__(self) -> str:
        return repr(self._plain())

    def __reduce__(self) -> tuple[Any, ...]:
        return (list, (self._plain(),))

    def _immutable(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a variable cannot be changed by a template")

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _immutable
    append = clear = extend = insert = pop = remove = reverse = sort = _immutable
