"""find: the files below directories that are of a kind, by name, age, size, mode or content."""

from __future__ import annotations

import os
import re
import stat as bits
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.modules.files import Attributes, absolute, file_digest, follow, read_attributes
from crossgrade.modules.stat import status_values
from crossgrade.playbook.arguments import argument
from crossgrade.playbook.markers import DependsOnUnknown

UNITS_OF_TIME = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}  # seconds
UNITS_OF_SIZE = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}  # bytes
MOST_WHOLE_BYTES = 64 << 20  # of a file that is read whole for `contains`
NOT_RETURNED = frozenset(("blocks", "block_size", "device_type"))  # that `stat` has


@dataclass(frozen=True)
class Arguments:
    """Lists what is in directories, as far as it matches everything that is asked."""

    paths: tuple[str, ...] = argument(doc="The directories to look in.", aliases=("name", "path"))
    patterns: tuple[str, ...] = argument(
        doc="Shell patterns of names; one must match. With `use_regex` Python patterns, for how a name begins.",
        default=(),
        aliases=("pattern",),
    )
    excludes: tuple[str, ...] = argument(doc="Patterns of names to leave out.", default=(), aliases=("exclude",))
    use_regex: bool = argument(doc="`patterns` and `excludes` are Python patterns.", default=False)
    file_type: Literal["any", "directory", "file", "link"] = argument(
        doc="Which kind.", default="file", choices=("any", "directory", "file", "link")
    )
    recurse: bool = argument(doc="Look in the directories below too.", default=False)
    depth: int | None = argument(doc="With `recurse`, how many levels down; 1 is the directory itself.", default=None)
    hidden: bool = argument(doc="Also names that begin with a dot.", default=False)
    follow: bool = argument(doc="With `recurse`, go into what symlinks lead to.", default=False)
    age: str | None = argument(
        doc="At least so old: seconds, or with s, m, h, d or w. With a minus: at most so old.", default=None
    )
    age_stamp: Literal["atime", "ctime", "mtime"] = argument(
        doc="Which time the age counts from.", default="mtime", choices=("atime", "ctime", "mtime")
    )
    size: str | None = argument(
        doc="At least so large: bytes, or with b, k, m, g or t. With a minus: at most so large.", default=None
    )
    mode: Any = argument(doc="Only with this mode, as `file` writes it.", default=None)
    exact_mode: bool = argument(doc="False: the mode has at least these permissions.", default=True)
    contains: str | None = argument(
        doc="A Python pattern that a line of the file begins with; for `file_type: file`.", default=None
    )
    read_whole_file: bool = argument(doc="Look for `contains` anywhere in the whole text.", default=False)
    encoding: str | None = argument(doc="The encoding for `contains`; without it UTF-8.", default=None)
    get_checksum: bool = argument(doc="Return the checksum of files.", default=False)
    checksum_algorithm: Literal["md5", "sha1", "sha224", "sha256", "sha384", "sha512"] = argument(
        doc="Which checksum.",
        default="sha1",
        choices=("md5", "sha1", "sha224", "sha256", "sha384", "sha512"),
        aliases=("checksum", "checksum_algo"),
    )
    limit: int | None = argument(doc="Stop after so many matches, the upper directories first.", default=None)


@dataclass(frozen=True)
class Wanted:
    """What must match: patterns compiled, `age` in seconds, `size` in bytes, both with their sign."""

    names: tuple[re.Pattern[str] | str, ...]
    left_out: tuple[re.Pattern[str] | str, ...]
    age: int | None
    size: int | None
    contains: re.Pattern[str] | None
    attributes: Attributes
    now: float


@dataclass(frozen=True)
class State:
    """What is returned."""

    values: Mapping[str, Any]


def inspect(arguments: Arguments, host: HostView) -> State:
    wanted = Wanted(
        _patterns(arguments.patterns, "patterns", arguments),
        _patterns(arguments.excludes, "excludes", arguments),
        _amount(arguments.age, "age", UNITS_OF_TIME),
        _amount(arguments.size, "size", UNITS_OF_SIZE),
        None if arguments.contains is None else _compiled(arguments.contains, "contains"),
        read_attributes(arguments.mode, None, None, host),
        time.time(),
    )
    files: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    examined = 0
    for name in arguments.paths:
        root = absolute(name, host)
        if follow(root, host).kind == "unknown" or host.predicts_below(root):
            raise DependsOnUnknown(f"what earlier tasks do in {root}")
        if not root.is_dir():
            skipped[str(root)] = f"{root} is no directory"
            continue
        for number, found in _walk(root, arguments, wanted, skipped):
            examined += number
            files += found
            if arguments.limit is not None and len(files) >= arguments.limit:
                break
        if arguments.limit is not None and len(files) >= arguments.limit:
            files = files[: arguments.limit]
            break
    message = "Not all paths examined, see skipped_paths" if skipped else "All paths examined"
    if arguments.limit is not None and len(files) == arguments.limit:
        message = "Limit of matches reached"
    return State(
        {"files": files, "matched": len(files), "examined": examined, "skipped_paths": skipped, "msg": message}
    )


def _patterns(given: tuple[str, ...], what: str, arguments: Arguments) -> tuple[re.Pattern[str] | str, ...]:
    return tuple(_compiled(one, what) for one in given) if arguments.use_regex else given


def _compiled(pattern: str, what: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise TaskError(f"`{what}` is no regular expression: {error}: {pattern!r}") from error


def _amount(text: str | None, what: str, units: Mapping[str, int]) -> int | None:
    if text is None:
        return None
    match = re.fullmatch(r"(-?\d+)([a-z]?)", text.strip().lower())
    if match is None or (match[2] and match[2] not in units):
        raise TaskError(f"`{what}` is a number with one of {', '.join(units)} behind it, not {text!r}")
    return int(match[1]) * units.get(match[2], 1)


def _walk(
    root: Path, arguments: Arguments, wanted: Wanted, skipped: dict[str, str]
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """For each directory how many names it has, and those that match."""
    above: dict[Path, frozenset[tuple[int, int]]] = {}  # the directories on the way to one that links are followed to

    def cannot(error: OSError) -> None:
        skipped[str(error.filename)] = str(error.strerror)

    for folder, folders, names in os.walk(root, onerror=cannot, followlinks=arguments.follow):
        here = Path(folder)
        status = here.stat()
        on_the_way = above.get(here.parent, frozenset()) if arguments.follow else frozenset()
        if (status.st_dev, status.st_ino) in on_the_way:  # a symlink to a directory above
            folders.clear()
            continue
        if arguments.follow:
            above[here] = on_the_way | {(status.st_dev, status.st_ino)}
        folders.sort()
        number = len(folders) + len(names)
        level = len(here.relative_to(root).parts) + 1
        if arguments.depth and level > arguments.depth:
            yield number, []
            folders.clear()
            continue
        paths = [here / name for name in (*sorted(names), *folders)]
        yield number, [values for path in paths if (values := _judged(path, arguments, wanted)) is not None]
        if not arguments.recurse:
            return


def _judged(path: Path, arguments: Arguments, wanted: Wanted) -> dict[str, Any] | None:
    """What is returned of a path that matches; None for one that does not, or that has just gone."""
    if path.name.startswith(".") and not arguments.hidden:
        return None
    if wanted.names and not any(_matches(path.name, one) for one in wanted.names):
        return None
    if any(_matches(path.name, one) for one in wanted.left_out):
        return None
    try:
        status = path.lstat()
        if not _fits(path, status, arguments, wanted):
            return None
        values = {"path": str(path), **{n: v for n, v in status_values(status).items() if n not in NOT_RETURNED}}
        if arguments.get_checksum and bits.S_ISREG(status.st_mode):
            values["checksum"] = file_digest(path, arguments.checksum_algorithm)
    except (FileNotFoundError, PermissionError):
        return None
    return values


def _matches(name: str, pattern: re.Pattern[str] | str) -> bool:
    return fnmatchcase(name, pattern) if isinstance(pattern, str) else pattern.match(name) is not None


def _fits(path: Path, status: os.stat_result, arguments: Arguments, wanted: Wanted) -> bool:
    kinds = {"directory": bits.S_ISDIR, "file": bits.S_ISREG, "link": bits.S_ISLNK}
    if arguments.file_type != "any" and not kinds[arguments.file_type](status.st_mode):
        return False
    if wanted.age is not None:
        age = wanted.now - getattr(status, f"st_{arguments.age_stamp}")
        if not (age >= wanted.age if wanted.age >= 0 else age <= -wanted.age):
            return False
    mode = bits.S_IMODE(status.st_mode)
    asked = wanted.attributes.mode_of(mode, directory=bits.S_ISDIR(status.st_mode))
    if asked is not None and not (mode == asked if arguments.exact_mode else mode & asked == asked):
        return False
    if arguments.file_type != "file":
        return True
    size = wanted.size
    if size is not None and not (status.st_size >= size if size >= 0 else status.st_size <= -size):
        return False
    return wanted.contains is None or _contains(path, status.st_size, arguments, wanted.contains)


def _contains(path: Path, size: int, arguments: Arguments, pattern: re.Pattern[str]) -> bool:
    try:
        with path.open(encoding=arguments.encoding or "utf-8") as stream:
            if arguments.read_whole_file:
                if size > MOST_WHOLE_BYTES:
                    raise TaskError(f"{path} has more than {MOST_WHOLE_BYTES >> 20} MiB: it is not read whole")
                return pattern.search(stream.read()) is not None
            return any(pattern.match(line) for line in stream)
    except LookupError as error:
        raise TaskError(f"there is no encoding {arguments.encoding!r}") from error
    except UnicodeDecodeError:  # it is no text, so it does not have the line
        return False


def plan(arguments: Arguments, state: State) -> Plan:
    return Change(f"look for files in {', '.join(arguments.paths)}", values=state.values)


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    return Outcome(change.values)


MODULE = Module(
    name="find",
    arguments=Arguments,
    effect="reads",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="The files of a directory that match.",
)
