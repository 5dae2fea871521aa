"""apt: packages of Debian and Ubuntu, and never one of the NVIDIA driver's.

apt itself says beforehand what it would do (``apt-get --simulate``, see `apt_transaction`); that is judged, shown, and
compared with what it then did. Taking back goes as far as apt can: what was new is purged, an old version comes back
where a repository still has it, and the plan says which will not.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Literal

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.apt_calls import Apt, find_apt
from crossgrade.modules.apt_transaction import (
    PackageChange,
    driver_part,
    driver_rules,
    package_sizes,
    parse_simulation,
    unknown_packages,
)
from crossgrade.modules.apt_undo import LOG, undo
from crossgrade.modules.contract import (
    ApplyContext,
    Change,
    Difference,
    HostView,
    Module,
    Outcome,
    Plan,
    Prediction,
    Space,
    Unchanged,
)
from crossgrade.modules.files import absolute
from crossgrade.playbook.arguments import argument

_GLOB = re.compile(r"[*?\[]")
_REMEDY = "Run crossgrade as root."


@dataclass(frozen=True)
class Arguments:
    """Installs or removes packages by apt. A transaction that touches the NVIDIA driver is refused."""

    name: tuple[str, ...] = argument(
        doc="Packages, with a version (`git=1:2.39*`) or without; globs stand for what apt knows.",
        default=(),
        aliases=("package", "pkg"),
    )
    state: Literal["present", "latest", "absent", "build-dep", "fixed"] = argument(
        doc="`latest` upgrades what is there; `build-dep` installs what building it needs.", default="present"
    )
    update_cache: bool = argument(doc="Read the package lists anew before.", default=False, aliases=("update-cache",))
    cache_valid_time: int = argument(
        doc="Seconds for which the lists are new enough; it asks for them by itself.", default=0
    )
    deb: str | None = argument(doc="The path of a package file.", default=None)
    purge: bool = argument(doc="Remove settings too.", default=False)
    autoremove: bool = argument(doc="Remove what was installed for others and is not needed any more.", default=False)
    only_upgrade: bool = argument(doc="Install nothing that is not there already.", default=False)
    default_release: str | None = argument(doc="The release to prefer.", default=None, aliases=("default-release",))
    install_recommends: bool | None = argument(
        doc="Install what is recommended too; without it, as apt is configured.",
        default=None,
        aliases=("install-recommends",),
    )
    allow_downgrade: bool = argument(
        doc="Let a version become older.", default=False, aliases=("allow_downgrades", "allow-downgrade")
    )
    allow_change_held_packages: bool = argument(doc="Change packages that are held.", default=False)
    fail_on_autoremove: bool = argument(doc="Fail when packages that were not named would be removed.", default=False)
    dpkg_options: str = argument(doc="Options of dpkg, with commas between.", default="force-confdef,force-confold")
    lock_timeout: int = argument(doc="Seconds to wait for another package manager.", default=60)
    force: bool = argument(doc="Refused: it installs unsigned packages and removes essential ones.", default=False)
    allow_unauthenticated: bool = argument(doc="Refused: an unsigned package may come from anybody.", default=False)
    upgrade: Any = argument(
        doc="Refused: upgrading a whole system cannot be taken back. Do it beforehand.", default="no"
    )
    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (("name", "deb"),)
    required_one_of: ClassVar[tuple[tuple[str, ...], ...]] = (
        (
            "name",
            "deb",
            "update_cache",
            "cache_valid_time",
            "autoremove",
            "state",
            "upgrade",
            "force",
            "allow_unauthenticated",
        ),
    )


@dataclass(frozen=True)
class State:
    """`words` go to apt-get after its options; `changes` are what it says that it would do.

    `lists_due` says whether the lists are read anew before, `unsure` that apt does not know the packages until then.
    `stays` are packages that cannot come back when the run is taken back.
    """

    apt: Apt
    options: tuple[str, ...]
    words: tuple[str, ...]
    changes: tuple[PackageChange, ...]
    lists_due: bool
    unsure: bool
    stays: tuple[str, ...]
    sizes: tuple[int, int]
    lists_time: int


# ---- looking


def inspect(arguments: Arguments, host: HostView) -> State:
    _refuse(arguments)
    if shutil.which("apt-get", path=host.environment.get("PATH")) is None:
        raise TaskError("there is no apt-get on PATH: this is neither Debian nor Ubuntu")
    apt = find_apt(host)
    lists_time = _lists_time(apt)
    wants_lists = arguments.update_cache or arguments.cache_valid_time > 0
    lists_due = wants_lists and time.time() - lists_time > arguments.cache_valid_time
    options = _options(arguments)
    words = _words(arguments, apt, host)
    changes: tuple[PackageChange, ...] = ()
    unsure = False
    if words:
        changes, unsure = _simulated(arguments, apt, options, words, lists_due, host)
    if changes or lists_due:
        apt.require_permission(_REMEDY)
    sizes = package_sizes(apt.show(changes, ())) if changes and host.check_mode else (0, 0)
    stays = _stays(apt, changes) if changes else ()
    return State(apt, options, tuple(words), changes, lists_due, unsure, stays, sizes, lists_time)


def _refuse(arguments: Arguments) -> None:
    for name in ("force", "allow_unauthenticated"):
        if getattr(arguments, name):
            raise TaskError(
                f"`{name}` lets apt do what its own checks forbid",
                remedy="Add the repository's key to apt, or `allow_downgrade`, `allow_change_held_packages`.",
            )
    if str(arguments.upgrade).lower() not in ("no", "false"):
        raise TaskError(
            "`upgrade` changes the whole system, which cannot be taken back",
            remedy="Upgrade beforehand, outside of a run; or name packages, with `state: latest`.",
        )


def _lists_time(apt: Apt) -> int:
    """When the lists were last read, in seconds since 1970; 0 when never."""
    stamp = apt.lists.parent / "periodic" / "update-success-stamp"
    for place in (stamp, apt.lists):
        if place.exists():
            return int(place.stat().st_mtime)
    return 0


def _options(arguments: Arguments) -> tuple[str, ...]:
    options: list[str] = []
    if arguments.default_release:
        options += ["--target-release", arguments.default_release]
    if arguments.install_recommends is not None:
        options += ["-o", f"APT::Install-Recommends={'yes' if arguments.install_recommends else 'no'}"]
    options += ["--allow-downgrades"] if arguments.allow_downgrade else []
    options += ["--allow-change-held-packages"] if arguments.allow_change_held_packages else []
    options += ["--only-upgrade"] if arguments.only_upgrade else []
    options += ["--auto-remove"] if arguments.autoremove else []
    for option in filter(None, arguments.dpkg_options.split(",")):
        options += ["-o", f"Dpkg::Options::=--{option.strip()}"]
    return tuple(options)


def _words(arguments: Arguments, apt: Apt, host: HostView) -> list[str]:
    """The verb and what it is for; nothing where all is so already."""
    if arguments.deb is not None:
        return _package_file(arguments.deb, apt, host)
    installed = apt.installed()
    names = _expanded(arguments.name, apt, installed)
    if arguments.state == "absent":
        known = apt.there() if arguments.purge else installed
        there = [name.partition("=")[0] for name in names if _is_there(name, known)]
        return ["purge" if arguments.purge else "remove", *there] if there else _autoremove(arguments)
    if arguments.state == "build-dep":
        return ["build-dep", *names] if names else []
    if arguments.state == "fixed":
        return ["install", "--fix-broken"]
    wanted = [name for name in names if arguments.state == "latest" or not _is_there(name, installed)]
    if arguments.only_upgrade:
        wanted = [name for name in wanted if name.partition("=")[0] in installed]
    return ["install", *wanted] if wanted else _autoremove(arguments)


def _autoremove(arguments: Arguments) -> list[str]:
    return ["autoremove", *(["--purge"] if arguments.purge else [])] if arguments.autoremove else []


def _expanded(names: Sequence[str], apt: Apt, installed: Mapping[str, str]) -> list[str]:
    """Globs as the names that they stand for. Raises TaskError for what is no name."""
    found: list[str] = []
    for name in names:
        bare = name.strip().partition("=")[0]
        if not re.fullmatch(r"[a-z0-9*?\[\]][a-z0-9+.*?\[\]-]*(:[a-z0-9-]+)?", bare):
            raise TaskError(f"{name!r} is no name of a package")
        if _GLOB.search(bare):
            found += sorted(one for one in {*apt.names(), *installed} if fnmatchcase(one, bare))
        else:
            found.append(name.strip())
    return found


def _is_there(requested: str, installed: Mapping[str, str]) -> bool:
    name, _, version = requested.partition("=")
    return name in installed and fnmatchcase(installed[name], version or "*")


def _package_file(deb: str, apt: Apt, host: HostView) -> list[str]:
    if "://" in deb:
        raise TaskError("`deb` is fetched from nowhere", remedy="Download it by `get_url` with a `checksum` before.")
    path = absolute(deb, host)
    fields = apt.fields_of(path)
    if apt.installed().get(fields.get("Package", "")) == fields.get("Version"):
        return []
    return ["install", str(path)]


def _simulated(
    arguments: Arguments, apt: Apt, options: Sequence[str], words: Sequence[str], lists_due: bool, host: HostView
) -> tuple[tuple[PackageChange, ...], bool]:
    """What apt would do, and whether it knows that only after reading the lists. Raises TaskError."""
    answer = apt.simulate(words[1:], options, verb=words[0], recommends=())
    if not answer.succeeded:
        said = answer.stdout + answer.stderr
        if lists_due and unknown_packages(said):
            return (), True
        raise _not_possible(said)
    changes = tuple(
        change for change in parse_simulation(answer.stdout) if _foreseen(change.name, apt, host) != change.after
    )
    require_harmless(arguments, changes)
    return changes, False


def _foreseen(name: str, apt: Apt, host: HostView) -> str | None:
    """The version that an earlier task of the plan leaves: "" for none, None where no task touches it."""
    value = host.predicted("path", str(_record_of(name, apt)))
    return str(value.get("version", "")) if isinstance(value, dict) else None


def _record_of(name: str, apt: Apt) -> Path:
    """The file in which dpkg keeps what belongs to a package."""
    return apt.status.parent / "info" / f"{name}.list"


def _not_possible(said: str) -> TaskError:
    unknown = unknown_packages(said)
    if unknown:
        return TaskError(
            f"apt knows no {', '.join(unknown)}",
            remedy="Look at the name; with `update_cache: true` the lists are read anew before.",
        )
    lines = [line for line in said.splitlines() if line.startswith(("E:", " ")) and line.strip()]
    return TaskError(f"apt cannot do it: {' '.join(' '.join(lines).split()) or said.strip()}")


def require_harmless(arguments: Arguments, changes: Sequence[PackageChange]) -> None:
    """Raises TaskError for a transaction that is not carried out."""
    rules = driver_rules()
    parts = [f"{one.name} ({part})" for one in changes if (part := driver_part(one.name, rules))]
    if parts:
        raise TaskError(
            f"apt is not let do this, it would touch the NVIDIA driver: {', '.join(parts)}",
            remedy="Change the driver outside of a run, with a reboot; for a toolkit use `cuda_toolkit`.",
        )
    named = {name.strip().partition("=")[0] for name in arguments.name}
    besides = [one.name for one in changes if one.action == "remove" and one.name not in named]
    if besides and arguments.fail_on_autoremove:
        raise TaskError(f"`fail_on_autoremove`: apt would also remove {', '.join(besides)}")


def _stays(apt: Apt, changes: Sequence[PackageChange]) -> tuple[str, ...]:
    """What no repository has any more in the version that is installed now."""
    replaced = [change for change in changes if change.before]
    offered = apt.offered([change.name for change in replaced])
    return tuple(change.name for change in replaced if (change.name, change.before) not in offered)


# ---- planning


def plan(arguments: Arguments, state: State) -> Plan:  # noqa: ARG001 (the contract's shape)
    values = {"cache_updated": False, "cache_update_time": state.lists_time}
    if not state.changes and not state.lists_due and not state.unsure:
        return Unchanged("all packages are as asked", values)
    parts = ["read the package lists"] if state.lists_due else []
    if state.unsure:
        parts.append(f"{state.words[0]} {', '.join(state.words[1:])}, as far as the new lists have it")
    elif state.changes:
        names = ", ".join(word for word in state.words[1:] if not word.startswith("-"))
        parts.append(f"{state.words[0]} {names} by apt".replace("  ", " "))
    if state.stays:
        parts.append(f"which cannot be taken back for {', '.join(state.stays)}: no repository has the old version")
    return Change(
        "; ".join(parts),
        tuple(Difference(change.name, change.before, change.after) for change in state.changes),
        values,
        values_known=False,
        predicts=tuple(
            Prediction(
                "path", str(_record_of(change.name, state.apt)), {"exists": bool(change.after), "version": change.after}
            )
            for change in state.changes
        ),
        payload={"state": state},
        space=(
            Space(state.apt.status.parent, state.sizes[0], "packages"),
            Space(state.apt.archives, state.sizes[1], "packages to download"),
        ),
    )


# ---- doing


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    state: State = change.payload["state"]
    apt, changes, words = state.apt, state.changes, list(state.words)
    if state.lists_due:
        with context.step("read the package lists", {}):
            apt.change(["update"], context, arguments.lock_timeout, LOG)
        words = _words(arguments, apt, context.host)
        changes = _simulated(arguments, apt, state.options, words, False, context.host)[0] if words else ()
    said = ""
    if changes:
        before = {one.name: one.before for one in changes}
        record: dict[str, JSON] = {"before": dict(before), "environment": dict(apt.environment)}
        with context.step(f"apt-get {words[0]} ({len(changes)} packages)", record, by_hand=_by_hand(changes)):
            context.progress(f"apt-get {words[0]}: {len(changes)} packages")
            said = apt.change([*state.options, *words], context, arguments.lock_timeout, LOG).stdout
            _require_done(apt, changes)
    values = {
        "cache_updated": state.lists_due,
        "cache_update_time": _lists_time(apt),
        "stdout": said,
        "stdout_lines": said.splitlines(),
        "stderr": "",
        "stderr_lines": [],
    }
    return Outcome(values, changed=bool(changes) or state.lists_due)


def _require_done(apt: Apt, changes: Sequence[PackageChange]) -> None:
    now = apt.installed()
    wrong = [one.name for one in changes if now.get(one.name, "") != one.after]
    if wrong:
        raise TaskError(f"apt did something else than it had said: {', '.join(wrong)}")


def _by_hand(changes: Sequence[PackageChange]) -> list[str]:
    new = [one.name for one in changes if not one.before]
    old = [f"{one.name}={one.before}" for one in changes if one.before]
    lines = [f"apt-get purge {' '.join(new)}"] if new else []
    return [*lines, *([f"apt-get install --allow-downgrades {' '.join(old)}"] if old else [])]


MODULE = Module(
    name="apt",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    proves_itself=False,
    summary="Packages of Debian and Ubuntu. New ones are removed again; an old version only where a repository has it.",
)
