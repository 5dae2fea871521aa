"""All plays of a playbook over their hosts: in which order, in which batches, and when the rest is left out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from crossgrade.engine.company import Company
from crossgrade.engine.events import Events
from crossgrade.engine.prepare import Prepared
from crossgrade.engine.roster import Roster
from crossgrade.engine.turns import SideBySide
from crossgrade.engine.walk import Walk
from crossgrade.errors import CrossgradeError
from crossgrade.playbook.inventory import Host
from crossgrade.playbook.model import Play
from crossgrade.playbook.templating import Templar


def walk_plays(
    prepared: Prepared,
    company: Company,
    events: Events,
    begin: Callable[[Play, Host, Sequence[Host]], Walk],
    end: Callable[[Walk], None],
    perhaps: Callable[[Play, str], None],
) -> None:
    """Walk all plays; `begin` makes the walk of a host, with the hosts of its batch, and `end` gets it when it is over.

    Which hosts a play is for is found out when its turn comes; `perhaps` is told of one without hosts that may have
    some in a run, and why. A host that has failed takes no part any more. When all hosts of a batch fail, or more than
    `max_fail_percentage`, nothing more is done. Raises WrongOptionsError for hosts that cannot be, and what a walk
    raises, but for HostFailed: that is in `memory`.
    """
    memory, told = company.memory, set[str]()
    for play, at_first in prepared.plays:
        hosts = _turn_out(prepared, company.roster, play, at_first, events, told, perhaps)
        templar = None
        for batch in batches(play, ordered(hosts, play.order)):
            members = [host for host in batch if memory.of(host.name).failure is None]
            if not members:
                continue
            events.emit("play_started", play=play.name or ", ".join(play.hosts))
            walks = [begin(play, host, batch) for host in members]
            templar = templar or walks[0].templar(walks[0].scope)
            side = SideBySide(walks, len(batch), _percentage(play, templar))
            try:
                side.run()
            finally:
                for walk in walks:
                    end(walk)
            failed = sum(memory.of(host.name).failure is not None for host in members)
            if side.broken or failed == len(batch):
                return
            if side.ended:
                break


def _turn_out(
    prepared: Prepared,
    roster: Roster,
    play: Play,
    at_first: tuple[Host, ...],
    events: Events,
    told: set[str],
    perhaps: Callable[[Play, str], None],
) -> Sequence[Host]:
    """The hosts of the play, with a warning for what matches none. Raises WrongOptionsError."""
    turnout = roster.turn_out(prepared, play, at_first)
    for sentence in turnout.missing:
        left_out = "" if turnout.hosts else f", and the play {play.display_name!r} is left out"
        if sentence + left_out not in told:
            told.add(sentence + left_out)
            events.emit("warning", message=sentence + left_out)
    if turnout.perhaps and turnout.hosts:
        message = f"the play {play.display_name!r} may be for more hosts than the plan shows: see {turnout.perhaps}"
        events.emit("warning", message=message)
    elif turnout.perhaps:
        perhaps(play, turnout.perhaps)
    return turnout.hosts


def _percentage(play: Play, templar: Templar) -> float | None:
    if play.max_fail_percentage is None:
        return None
    given = templar.template(play.max_fail_percentage, play.spot_of("max_fail_percentage"))
    try:
        return float(given)
    except (TypeError, ValueError):
        place = play.spot_of("max_fail_percentage").place
        raise CrossgradeError(f"max_fail_percentage needs a number, not {given!r}", place=place) from None


def ordered(hosts: Sequence[Host], order: str | None) -> list[Host]:
    """In the order that the play asks for. `shuffle` is the same each time: a plan says what a run will do."""
    found = list(hosts)
    if order in ("sorted", "reverse_sorted"):
        found.sort(key=lambda host: host.name)
    if order in ("reverse_inventory", "reverse_sorted"):
        found.reverse()
    if order == "shuffle":
        random.Random(" ".join(host.name for host in found)).shuffle(found)  # noqa: S311 - no secret hangs on it
    return found


def batches(play: Play, hosts: Sequence[Host]) -> Iterator[list[Host]]:
    """The hosts as `serial` cuts them up: the last size holds for all batches after it."""
    sizes = [_size(play, size, len(hosts)) for size in play.serial] or [len(hosts)]
    left = list(hosts)
    at = 0
    while left:
        size = sizes[min(at, len(sizes) - 1)]
        size = size if size > 0 else len(left)
        yield left[:size]
        del left[:size]
        at += 1


def _size(play: Play, given: int | str, all_hosts: int) -> int:
    if isinstance(given, int):
        return given
    text = str(given).strip()
    if text.removesuffix("%").isdigit():
        number = int(text.removesuffix("%"))
        return max(1, number * all_hosts // 100) if text.endswith("%") else number
    raise CrossgradeError(
        f"serial needs a number of hosts or a percentage, not {text!r}", place=play.spot_of("serial").place
    )
