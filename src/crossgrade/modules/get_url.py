"""get_url: a file from the network."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, Difference, HostView, Module, Outcome, Plan, Unchanged
from crossgrade.modules.fetching import (
    NOT_MODIFIED,
    Fetched,
    FetchError,
    Request,
    fetch,
    fetch_name,
    fetch_sum,
    make_request,
)
from crossgrade.modules.file_operations import Operation, WriteFile, attribute_operation, perform, plan_change
from crossgrade.modules.file_undo import undo, undo_folder
from crossgrade.modules.files import (
    Attributes,
    Entry,
    absolute,
    entry_at,
    file_digest,
    follow,
    path_values,
    predictions,
    read_attributes,
)
from crossgrade.modules.placing import backup_operations, backup_suffix
from crossgrade.modules.refusing import FILE, KERBEROS
from crossgrade.modules.uri import mask
from crossgrade.places import shown_bytes
from crossgrade.playbook.arguments import argument

PROGRESS_SECONDS = 1.0


@dataclass(frozen=True)
class Arguments:
    """Fetches a file over HTTP, HTTPS or from file://; the old file is replaced in one rename."""

    url: str = argument(doc="The address.")
    dest: str = argument(doc="Where to: a file, or a directory, in which it gets the name that the server gives.")
    checksum: str = argument(
        doc="`sha256:HEX`, or `sha256:` and the address of a file of checksums. What does not have it is not kept.",
        default="",
    )
    force: bool = argument(
        doc="Ask for the whole file again. Without it, a file that is there is replaced when the server has a newer "
        "one, and with `checksum` only when it has another.",
        default=False,
    )
    headers: Mapping[str, Any] = argument(doc="Headers of the request.", default_factory=dict, secret=True)
    timeout: float = argument(doc="Seconds to wait for the connection and for each part of the answer.", default=10)
    url_username: str | None = argument(doc="User for basic authentication.", default=None, aliases=("username",))
    url_password: str | None = argument(
        doc="Password for basic authentication.", default=None, aliases=("password",), secret=True
    )
    force_basic_auth: bool = argument(doc="The login is always sent at once: without effect.", default=False)
    unredirected_headers: tuple[str, ...] = argument(
        doc="Headers that nobody is told after a redirect; Authorization and Cookie no other server ever is.",
        default=(),
    )
    http_agent: str = argument(doc="The User-Agent.", default="ansible-httpget")
    validate_certs: bool = argument(doc="Refuse certificates that cannot be verified.", default=True)
    client_cert: str | None = argument(doc="A certificate (PEM) to show to the server, with its key.", default=None)
    client_key: str | None = argument(doc="The key of that certificate, in a file of its own.", default=None)
    ciphers: tuple[str, ...] = argument(doc="The ciphers to use, as OpenSSL names them.", default=())
    use_netrc: bool = argument(doc="Without a user, take the login from ~/.netrc.", default=True)
    tmp_dest: str | None = argument(doc="In which directory to keep it until it is whole.", default=None)
    use_proxy: bool = argument(doc="Use the proxy of the environment.", default=True)
    decompress: bool = argument(doc="Unpack an answer that the server sends compressed.", default=True)
    backup: bool = argument(doc="Keep a copy of the old file beside the new one.", default=False)
    mode: Any = argument(doc='The mode: "0644" (with quotes) or u=rw,g=r,o=r.', default=None)
    owner: str | None = argument(doc="The user, by name or number.", default=None)
    group: str | None = argument(doc="The group, by name or number.", default=None)
    refused: ClassVar[Mapping[str, str]] = {**FILE, **KERBEROS}


@dataclass(frozen=True)
class State:
    """`fetched` is what the server has now; None where nobody asked. `wanted` is the checksum, "" without one.

    `problem` is why nobody can say what the server has.

    `same` says that the file is there already, as asked; `current` is its sha1, "" without a file.
    """

    request: Request
    entry: Entry
    attributes: Attributes
    algorithm: str
    wanted: str
    same: bool
    current: str = ""
    fetched: Fetched | None = None
    problem: FetchError | None = None


def inspect(arguments: Arguments, host: HostView) -> State:
    try:
        return _look(arguments, host)
    except FetchError as error:
        if host.check_mode:
            raise
        # a run tells of it with the values that `register` sees
        nothing = Attributes(None, None, None, 0)
        place = Entry(absolute(arguments.dest, host), "unknown")
        return State(_request(arguments.url, arguments, host), place, nothing, "", "", False, problem=error)


def _look(arguments: Arguments, host: HostView) -> State:
    request = _request(arguments.url, arguments, host)
    algorithm, wanted = _checksum(arguments, host)
    attributes = read_attributes(arguments.mode, arguments.owner, arguments.group, host)
    entry = follow(absolute(arguments.dest, host), host)
    in_directory = entry.kind == "directory"
    if in_directory:
        name = host.pinned(f"get_url name {mask(arguments.url)}", lambda: fetch_name(request))
        entry = follow(entry.path / name, host)
    if entry.kind not in ("file", "absent", "unknown"):
        raise TaskError(f"{entry.path} is a {entry.state}, no file that could be replaced")
    if follow(entry.path.parent, host).kind not in ("directory", "unknown"):
        raise TaskError(f"there is no directory {entry.path.parent}", remedy="Make it with the file module.")
    if arguments.tmp_dest and follow(absolute(arguments.tmp_dest, host), host).kind not in ("directory", "unknown"):
        raise TaskError(f"`tmp_dest`: there is no directory {arguments.tmp_dest}")
    state = State(request, entry, attributes, algorithm, wanted, same=False)
    if entry.kind != "file":
        return state
    state = replace(state, current=entry.checksum if entry.predicted else file_digest(entry.path))
    if wanted and not arguments.force and not in_directory:
        known = "" if entry.predicted else file_digest(entry.path, algorithm)
        return replace(state, same=known == wanted)
    if entry.predicted and not state.current:
        return state  # an earlier task makes it: what the server has can be compared in the run only
    newer_than = None if arguments.force or in_directory else entry.mtime
    fetched = _ask(arguments, request, algorithm, newer_than, host)
    same = fetched.status == NOT_MODIFIED or fetched.sha1 == state.current
    return replace(state, fetched=fetched, same=same)


def _request(url: str, arguments: Arguments, host: HostView) -> Request:
    return make_request(
        url,
        {str(name): str(value) for name, value in arguments.headers.items()},
        host.environment,
        user=arguments.url_username,
        password=arguments.url_password,
        agent=arguments.http_agent,
        personal=arguments.unredirected_headers,
        timeout=arguments.timeout,
        use_proxy=arguments.use_proxy,
        use_netrc=arguments.use_netrc,
        decompress=arguments.decompress,
        trust={
            "validate_certs": arguments.validate_certs,
            "client_cert": arguments.client_cert,
            "client_key": arguments.client_key,
            "ciphers": arguments.ciphers,
        },
    )


def _checksum(arguments: Arguments, host: HostView) -> tuple[str, str]:
    """The algorithm and the hex digits that are asked for; a file of checksums is fetched once for plan and run."""
    if not arguments.checksum:
        return "sha256", ""
    algorithm, separator, value = arguments.checksum.partition(":")
    known = algorithm in hashlib.algorithms_available
    length = hashlib.new(algorithm, usedforsecurity=False).digest_size * 2 if known else 0
    if not separator or not length:
        raise TaskError(f"`checksum` is sha256:HEX or sha256:ADDRESS, not {mask(arguments.checksum)!r}")
    value = value.strip()
    if "://" in value:
        name = unquote(urlsplit(arguments.url).path).rpartition("/")[2]
        request = _request(value, arguments, host)
        value = host.pinned(f"checksum {mask(value)} {name}", lambda: fetch_sum(request, name))
    if re.fullmatch(f"[0-9a-fA-F]{{{length}}}", value) is None:
        raise TaskError(f"{value!r} is no {algorithm} checksum: that has {length} hex digits")
    return algorithm, value.lower()


def _ask(arguments: Arguments, request: Request, algorithm: str, newer_than: int | None, host: HostView) -> Fetched:
    """What the server has: read once, and kept for the run, so that it does what the plan said."""
    key = f"get_url {mask(arguments.url)} {algorithm} {newer_than or ''}".strip()
    return Fetched(
        **json.loads(host.pinned(key, lambda: json.dumps(asdict(fetch(request, algorithm, newer_than=newer_than)))))
    )


def plan(arguments: Arguments, state: State) -> Plan:
    entry = state.entry
    values: dict[str, Any] = {"dest": str(entry.path), "url": mask(arguments.url)}
    if state.problem is not None:
        return Change(f"fetch {mask(arguments.url)}", values=values, payload={"state": state})
    if state.fetched is not None:
        values.update(status_code=state.fetched.status)
    if state.same:
        given = attribute_operation(state.attributes, entry)
        after = entry if given is None else replace(entry, **_given(given))
        values.update(msg="file already exists", **path_values(after))
        if state.fetched is not None and state.fetched.status != NOT_MODIFIED:
            values.update(_digests(state.fetched, state.current), msg=f"OK ({state.fetched.size} bytes)")
            values["md5sum"] = state.fetched.md5
        if given is None:
            return Unchanged(f"{entry.path} is as asked", values)
        return plan_change(f"set the attributes of {entry.path}", [given], values)
    change = plan_change(
        f"fetch {mask(arguments.url)} to {entry.path}",
        [],
        values,
        [Difference(str(entry.path), entry.state, f"file from {mask(arguments.url)}")],
    )
    made = Entry(entry.path, "file", mode=_mode(state), predicted=True, other_path=entry.other_path)
    if state.fetched is not None:
        made = replace(made, size=state.fetched.size, checksum=state.fetched.sha1)
    return replace(change, values_known=False, predicts=predictions(made), payload={"state": state})


def _given(operation: Any) -> dict[str, Any]:
    asked = {"mode": operation.mode, "uid": operation.uid, "gid": operation.gid}
    return {name: value for name, value in asked.items() if value is not None}


def _mode(state: State) -> int:
    entry, attributes = state.entry, state.attributes
    if entry.kind != "file" or entry.mode is None:
        return attributes.new_file_mode
    asked = attributes.mode_of(entry.mode, directory=False)
    return entry.mode if asked is None else asked


def _digests(fetched: Fetched, current: str) -> dict[str, Any]:
    return {"checksum_src": fetched.sha1, "checksum_dest": current or None}


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    if "state" not in change.payload:
        perform(change, context)
        return Outcome({**change.values, **path_values(entry_at(Path(change.values["dest"])))})
    state: State = change.payload["state"]
    began = time.monotonic()
    folder = undo_folder(context) if arguments.tmp_dest is None else absolute(arguments.tmp_dest, context.host)
    part = folder / f"crossgrade-{context.run_id}.part"
    try:
        if state.problem is not None:
            raise state.problem
        fetched = fetch(state.request, state.algorithm, target=part, progress=_Progress(context))
        _check(arguments, state, fetched)
        values = _put(arguments, state, fetched, part, change, context)
    except FetchError as error:
        values = {**change.values, "status_code": error.status, "elapsed": int(time.monotonic() - began)}
        return Outcome({**values, "msg": str(error)}, failed=True, message=str(error))
    finally:
        part.unlink(missing_ok=True)
    return Outcome({**values, "elapsed": int(time.monotonic() - began)})


def _check(arguments: Arguments, state: State, fetched: Fetched) -> None:
    if state.wanted and fetched.asked != state.wanted:
        raise TaskError(
            f"{mask(arguments.url)} has the {state.algorithm} {fetched.asked} ({shown_bytes(fetched.size)}), "
            f"not {state.wanted}: it is not kept",
            remedy="Compare the checksum with the one that the publisher states.",
        )
    if state.fetched is not None and state.fetched.sha1 not in ("", fetched.sha1):
        raise TaskError(
            f"{mask(arguments.url)} has another content than when the plan was made: it is not kept",
            remedy="Plan again, and give the task a `checksum`.",
        )


def _put(
    arguments: Arguments, state: State, fetched: Fetched, part: Path, change: Change, context: ApplyContext
) -> dict[str, Any]:
    entry = state.entry
    operations: list[Operation] = []
    values: dict[str, Any] = {**change.values, "status_code": fetched.status, "size": fetched.size}
    if arguments.backup and entry.kind == "file":
        operations += backup_operations(entry, state.current, backup_suffix())
        values["backup_file"] = str(operations[0].before.path)
    operations.append(
        WriteFile(entry, part, fetched.sha1, fetched.size, _mode(state), state.attributes.uid, state.attributes.gid)
    )
    perform(plan_change(change.summary, operations, {}), context)
    values.update(_digests(fetched, state.current), md5sum=fetched.md5, msg=f"OK ({fetched.size} bytes)")
    return {**values, **path_values(entry_at(entry.path))}


@dataclass
class _Progress:
    """Tells people how much has come, once a second."""

    context: ApplyContext
    told: float = 0.0

    def __call__(self, done: int) -> None:
        if time.monotonic() - self.told > PROGRESS_SECONDS:
            self.told = time.monotonic()
            self.context.progress(f"fetching: {shown_bytes(done)}")


MODULE = Module(
    name="get_url",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    summary="A file from the network.",
)
