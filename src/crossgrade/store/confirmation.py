"""The dead-man switch as data: what waits to be confirmed, until when, and where the host goes back to.

    ROOT/store/confirmation.json   written before the link is turned, removed by `confirm`, by the return and by undo

The deadline is kept on two clocks. Within one boot CLOCK_BOOTTIME decides (clock_gettime(2): it cannot be set, and it
goes on in suspend), so that a jump of the wall clock, either way, changes nothing. After a reboot only the wall clock
is left; the time that remains is then never more than was asked for, and it is put on the new boot's clock by
`anchored`, so that a wall clock that stands wrong cannot make it wait for ever.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from crossgrade.errors import StoreError
from crossgrade.store.atomic import sync_directory, write_json
from crossgrade.store.layout import Store, read_record

SCHEMA = 1
# systemd: a service and a timer of its, which a reboot starts again; process: a process of our own, which it ends
WatchedBy = Literal["systemd", "process"]


@dataclass(frozen=True)
class Instant:
    """A moment on both clocks: seconds since 1970, seconds of CLOCK_BOOTTIME, and the boot that these belong to."""

    wall: float
    boot: float
    boot_id: str

    @classmethod
    def now(cls) -> Instant:
        """This moment. The boot's name is the kernel's (random(4): /proc/sys/kernel/random/boot_id)."""
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return cls(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), boot_id)


@dataclass(frozen=True)
class Confirmation:
    """What waits to be confirmed.

    `generation` is the one that was activated, `previous` the one to go back to, `token` a name that no other
    confirmation has. `within` is seconds, `deadline` seconds since 1970, `boot_deadline` seconds of CLOCK_BOOTTIME in
    the boot `boot_id`. `note` says why `watched_by` is not systemd. `health` holds the arguments of `healthy`, empty
    without. `returning` is why the host goes back, "" until that has begun; `problem` what went wrong on the way.
    """

    token: str
    run: str
    generation: int
    previous: int
    within: float
    deadline: float
    boot_deadline: float
    boot_id: str
    watched_by: WatchedBy
    note: str = ""
    restart: tuple[str, ...] = ()
    health: Mapping[str, Any] = field(default_factory=dict)
    returning: str = ""
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self), "restart": list(self.restart)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Confirmation:
        """Raises KeyError or TypeError when the record is not one of ours."""
        fields = {name: value[name] for name in cls.__dataclass_fields__}
        numbers = ("generation", "previous", "within", "deadline", "boot_deadline")
        wrong = [name for name in numbers if type(fields[name]) not in (int, float)]
        texts = ("token", "run", "boot_id", "watched_by", "note", "returning", "problem")
        wrong += [name for name in texts if not isinstance(fields[name], str)]
        wrong += [name for name in ("health",) if not isinstance(fields[name], dict)]
        wrong += [name for name in ("restart",) if not isinstance(fields[name], list)]
        if wrong:
            raise TypeError(f"{', '.join(wrong)} of another type")
        return cls(**{**fields, "restart": tuple(str(word) for word in value["restart"])})


def seconds_left(confirmation: Confirmation, now: Instant) -> float:
    """Seconds until the deadline, negative after it; never more than was asked for."""
    if now.boot_id == confirmation.boot_id:
        return confirmation.boot_deadline - now.boot
    return min(confirmation.deadline - now.wall, confirmation.within)


def is_due(confirmation: Confirmation, now: Instant) -> bool:
    """Whether the host must go back: the time is over, or a return was begun and not finished."""
    return bool(confirmation.returning) or seconds_left(confirmation, now) <= 0


def started_anew(confirmation: Confirmation, now: Instant) -> Confirmation:
    """The same with its whole time ahead: waiting begins when the run that activated has ended."""
    return replace(
        confirmation,
        deadline=now.wall + confirmation.within,
        boot_deadline=now.boot + confirmation.within,
        boot_id=now.boot_id,
    )


def anchored(confirmation: Confirmation, now: Instant) -> Confirmation:
    """The same with what is left of its time put on this boot's clock; unchanged within one boot."""
    if now.boot_id == confirmation.boot_id:
        return confirmation
    return replace(
        confirmation, boot_deadline=now.boot + max(0.0, seconds_left(confirmation, now)), boot_id=now.boot_id
    )


# ---- on the disk


def confirmation_path(store: Store) -> Path:
    return store.root / "confirmation.json"


def read_confirmation(store: Store) -> Confirmation | None:
    """What waits to be confirmed, or None. Raises StoreError when the record is damaged."""
    path = confirmation_path(store)
    try:
        return Confirmation.from_json(read_record(path))
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, StoreError) as error:
        message = error.message if isinstance(error, StoreError) else f"the record {path} is damaged: {error!r}"
        raise StoreError(
            message,
            remedy="The active link was left alone. `crossgrade rollback` goes back all the same; remove the file when "
            "the active generation is to stay.",
        ) from error


def write_confirmation(store: Store, confirmation: Confirmation) -> None:
    write_json(confirmation_path(store), confirmation.to_json())


def remove_confirmation(store: Store) -> bool:
    """Remove the record, durably. True when it was there."""
    try:
        confirmation_path(store).unlink()
    except FileNotFoundError:
        return False
    sync_directory(store.root)
    return True
