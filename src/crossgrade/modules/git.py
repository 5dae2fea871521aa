"""git: a checkout (or a bare copy) of a repository at a branch, tag or commit.

What the version stands for is asked once, when the plan is made, and its run brings the same commit. No hook runs.
Taking back removes a new clone, and brings an existing one back to its commit, branch and remote address; what
`force` overwrote comes back too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import (
    ApplyContext,
    Change,
    Difference,
    HostView,
    Module,
    Outcome,
    Plan,
    Prediction,
    Unchanged,
)
from crossgrade.modules.files import absolute, follow, look, prediction_for
from crossgrade.modules.git_checkout import Checkout, clone, undo, update
from crossgrade.modules.git_source import GitSource, git_environment, last_words, require_plain, unreachable
from crossgrade.playbook.arguments import argument
from crossgrade.process import Completed, StartError

ASK_SECONDS = 60.0
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHORT = re.compile(r"[0-9a-f]{7,39}")
_SHOWN = 12  # digits of a commit for people


@dataclass(frozen=True)
class Arguments:
    """Clones a repository, or brings a clone to a version. Local changes are refused without `force`."""

    repo: str = argument(doc="The repository: a URL, or a path on this machine.", aliases=("name",))
    dest: str = argument(doc="Where the working tree is, or the bare repository.")
    version: str = argument(
        doc="A branch, a tag, or a commit; HEAD: the branch that the repository shows.", default="HEAD"
    )
    remote: str = argument(doc="What the clone calls the repository.", default="origin")
    refspec: str | None = argument(doc="What to fetch beside branches and tags.", default=None)
    force: bool = argument(
        doc="Overwrite local changes of tracked files; they come back when the run is taken back.", default=False
    )
    depth: int | None = argument(doc="How many commits of history to fetch.", default=None)
    clone: bool = argument(doc="Clone what is not there.", default=True)
    update: bool = argument(doc="Fetch and move what is there.", default=True)
    bare: bool = argument(doc="A bare repository, without a working tree.", default=False)
    recursive: bool = argument(doc="With its submodules.", default=True)
    track_submodules: bool = argument(doc="Submodules at the newest commit of their branches.", default=False)
    single_branch: bool = argument(doc="Clone the history of one branch only.", default=False)
    verify_commit: bool = argument(doc="The commit must have a signature that git can verify.", default=False)
    executable: str = argument(doc="The git program.", default="git")
    key_file: str | None = argument(doc="Refused: say it in ssh_config (IdentityFile).", default=None)
    ssh_opts: str | None = argument(doc="Refused: say it in ssh_config.", default=None)
    accept_hostkey: bool = argument(doc="Refused: an unknown host key is never taken on trust.", default=False)
    accept_newhostkey: bool = argument(doc="Refused: an unknown host key is never taken on trust.", default=False)


@dataclass(frozen=True)
class State:
    """`commit` is what the version stands for and `branch` its name when it is one, "" unknown in a plan.

    `here` is what lies at the destination, None when nothing does.
    """

    dest: Path
    source: GitSource
    commit: str
    branch: str
    here: Checkout | None


# ---- looking


def inspect(arguments: Arguments, host: HostView) -> State:
    _refuse(arguments)
    local_path = "://" not in arguments.repo and not re.match(r"[\w.-]+@[\w.-]+:", arguments.repo)
    repository = str(absolute(arguments.repo, host)) if local_path else arguments.repo
    require_plain(GitSource(arguments.repo, arguments.version, {}))
    source = GitSource(repository, arguments.version, {})
    dest = absolute(arguments.dest.rstrip("/") or "/", host)
    here = _at(dest, arguments, host)
    if here is not None and not arguments.update:
        return State(dest, source, here.commit, here.branch, here)
    commit, branch = _wanted(source, here, arguments, host)
    return State(dest, source, commit, branch, here)


def _refuse(arguments: Arguments) -> None:
    for name in ("accept_hostkey", "accept_newhostkey"):
        if getattr(arguments, name):
            raise TaskError(
                f"`{name}` takes a host on trust that nobody has looked at",
                remedy="Compare the host's key with what it publishes and put it into known_hosts beforehand.",
            )
    for name in ("key_file", "ssh_opts"):
        if getattr(arguments, name) is not None:
            raise TaskError(
                f"`{name}` is not supported: git hands it to a shell",
                remedy="Name the host's IdentityFile in ~/.ssh/config, or set GIT_SSH_COMMAND in `environment`.",
            )
    for name in ("remote", "refspec"):
        if (getattr(arguments, name) or "x").startswith("-"):
            raise TaskError(f"{getattr(arguments, name)!r} is no {name}")
    if arguments.depth is not None and arguments.depth < 1:
        raise TaskError("`depth` must be 1 or more")


def _at(dest: Path, arguments: Arguments, host: HostView) -> Checkout | None:
    """Raises TaskError for something that is no clone, or has local changes."""
    foreseen = prediction_for(dest, host)
    if foreseen is not None and "commit" in foreseen:  # an earlier task of the plan leaves it so
        return Checkout(str(foreseen["commit"]), str(foreseen.get("branch", "")), str(foreseen.get("url", "")))
    if look(dest, host).predicted or not follow(dest, host).exists:
        return None
    if not dest.is_dir():
        raise TaskError(f"{dest} is there and is no directory")
    if not any(dest.iterdir()):
        return None
    metadata = dest if arguments.bare else dest / ".git"
    if not (metadata / "HEAD").exists() and not metadata.is_file():
        raise TaskError(f"{dest} is not empty and is no clone", remedy="Move it away, or choose another `dest`.")
    ask = _Asking(dest, arguments, host)
    version = arguments.version if arguments.bare else "HEAD"
    commit = ask("rev-parse", "--verify", "--quiet", "--end-of-options", f"{version}^{{commit}}", tolerant=True)
    commit = commit.split()[-1] if commit else ""  # rev-parse echoes --end-of-options before git 2.42
    branch = ask("symbolic-ref", "--quiet", "--short", "HEAD", tolerant=True)
    url = ask("config", "--get", f"remote.{arguments.remote}.url", tolerant=True)
    changed = ""
    if not arguments.bare:
        status = ask("status", "--porcelain", "--ignore-submodules=untracked", "--untracked-files=no")
        changed = "\n".join(line for line in status.splitlines() if line.strip())
        if changed and not arguments.force and arguments.update:
            names = ", ".join(line[2:].strip() for line in changed.splitlines()[:5])
            raise TaskError(
                f"there are local changes in {dest}: {names}",
                remedy="Commit them or put them away; `force: true` overwrites them.",
            )
    return Checkout(commit, branch, url, bool(changed))


class _Asking:
    """Runs a git that only reads, in a clone."""

    def __init__(self, dest: Path, arguments: Arguments, host: HostView) -> None:
        self.dest, self.program, self.host = dest, arguments.executable, host

    def __call__(self, *words: str, tolerant: bool = False) -> str:
        answer = _git(self.program, ["-C", str(self.dest), *words], self.host)
        if not answer.succeeded and not tolerant:
            raise TaskError(f"git {words[0]} in {self.dest}: {last_words(answer)}")
        return answer.stdout.strip() if answer.succeeded else ""


def _git(program: str, words: list[str], host: HostView) -> Completed:
    # git status would refresh the index file of the clone; a plan writes nothing
    environment = {**git_environment(host.environment, {}), "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return host.run([program, *words], environment=environment, timeout=ASK_SECONDS)
    except StartError as error:
        raise TaskError(f"git cannot be started: {error}", remedy="Install it: apt install git") from error


def _wanted(source: GitSource, here: Checkout | None, arguments: Arguments, host: HostView) -> tuple[str, str]:
    """The commit and, for a branch, its name."""
    if _COMMIT.fullmatch(arguments.version):
        return arguments.version, ""
    if source.is_local and host.check_mode and not Path(source.repository).exists():
        if host.predicted("path", source.repository) is not None:
            return "", ""  # an earlier task makes it
        raise TaskError(f"there is no repository at {source.repository}")
    if here is not None and _SHORT.fullmatch(arguments.version):
        ask = _Asking(absolute(arguments.dest.rstrip("/") or "/", host), arguments, host)
        known = ask("rev-parse", "--verify", "--quiet", f"{arguments.version}^{{commit}}", tolerant=True)
        if known:
            return known, ""

    def find() -> str:
        answer = _git(arguments.executable, ["ls-remote", "--symref", "--", source.repository], host)
        if not answer.succeeded:
            raise unreachable(source.shown, answer)
        return " ".join(choose(answer.stdout, arguments.version, source.shown))

    commit, _, branch = host.pinned(f"git version {source.shown} {arguments.version}", find).partition(" ")
    return commit, branch


def choose(listing: str, version: str, shown: str) -> tuple[str, str]:
    """Commit and branch of a version in what `git ls-remote --symref` printed. Pure. Raises TaskError."""
    refs: dict[str, str] = {}
    head = ""
    for line in listing.splitlines():
        value, _, name = line.partition("\t")
        if value.startswith("ref: ") and name == "HEAD":
            head = value.removeprefix("ref: ")
        elif name:
            refs[name] = value
    if version == "HEAD" and "HEAD" in refs:
        return refs["HEAD"], head.removeprefix("refs/heads/") if head.startswith("refs/heads/") else ""
    name = version.removeprefix("refs/heads/")
    if f"refs/heads/{name}" in refs:
        return refs[f"refs/heads/{name}"], name
    full = version if version.startswith("refs/") else f"refs/tags/{version}"
    found = refs.get(f"{full}^{{}}") or refs.get(full)
    if found:
        return found, ""
    if _SHORT.fullmatch(version):
        matching = {commit for commit in refs.values() if commit.startswith(version)}
        if len(matching) == 1:
            return matching.pop(), ""
        raise TaskError(
            f"{version} looks like a shortened commit", remedy="Give all of its digits, or a branch or tag."
        )
    raise TaskError(f"{shown} has no branch or tag {version}", remedy="Give a branch, a tag or a full commit.")


# ---- planning


def plan(arguments: Arguments, state: State) -> Plan:
    here = state.here
    if here is None:
        return _plan_clone(arguments, state)
    if not arguments.update:
        return Unchanged("`update: false`: left as it is", {"before": here.commit, "after": here.commit})
    moved_url = _plain_url(here.url) != _plain_url(state.source.repository)
    values: dict[str, Any] = {"before": here.commit, "after": state.commit, "remote_url_changed": moved_url}
    if here.changed:
        values["msg"] = f"Local modifications exist in the destination: {state.dest}"
    on_branch = arguments.bare or here.branch == state.branch
    if here.commit == state.commit and on_branch and not moved_url and not here.changed and state.commit:
        return Unchanged(f"at {state.commit[:_SHOWN]}", values)
    differences = []
    if here.commit != state.commit:
        differences.append(Difference(f"commit of {state.dest}", here.commit, state.commit or "what will be there"))
    if not on_branch:
        differences.append(Difference(f"branch of {state.dest}", here.branch or "none", state.branch or "none"))
    if moved_url:
        shown = GitSource(here.url, "", {}).shown if here.url else "none"
        differences.append(Difference(f"{arguments.remote} of {state.dest}", shown, state.source.shown))
    if here.changed:
        differences.append(Difference(f"local changes in {state.dest}", "kept", "overwritten"))
    return Change(
        f"move {state.dest} to {_version(arguments, state)}",
        tuple(differences),
        values,
        values_known=bool(state.commit),
        predicts=_predicts(state),
        payload={"state": state},
    )


def _predicts(state: State) -> tuple[Prediction, ...]:
    """That the clone is there, and for another task with it, where it stands."""
    value: dict[str, JSON] = {"exists": True, "isdir": True, "unknown_below": "all"}
    if state.commit:
        value |= {"commit": state.commit, "branch": state.branch, "url": state.source.repository}
    return (Prediction("path", str(state.dest), value),)


def _plan_clone(arguments: Arguments, state: State) -> Plan:
    values = {"before": None, "after": state.commit}
    if not arguments.clone:
        return Unchanged("`clone: false`: there is nothing to update", {"before": None, "after": state.commit})
    return Change(
        f"clone {state.source.shown} at {_version(arguments, state)}",
        (Difference(f"commit of {state.dest}", "", state.commit or "what will be there"),),
        values,
        values_known=bool(state.commit),
        predicts=_predicts(state),
        payload={"state": state},
    )


def _version(arguments: Arguments, state: State) -> str:
    name = state.branch or ("" if _COMMIT.fullmatch(arguments.version) else arguments.version)
    return f"{name} ({state.commit[:_SHOWN]})" if name and state.commit else name or state.commit[:_SHOWN]


def _plain_url(url: str) -> str:
    return url.removeprefix("file://").rstrip("/")


# ---- doing


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    state: State = change.payload["state"]
    commit, branch = state.commit, state.branch
    if not commit:
        commit, branch = _wanted(state.source, state.here, arguments, context.host)
    if state.here is None:
        clone(arguments, state.source, state.dest, commit, branch, context)
    else:
        update(arguments, state.source, state.dest, commit, branch, state.here, context)
    return Outcome({**change.values, "after": commit})


MODULE = Module(
    name="git",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    summary="A clone of a repository at a branch, tag or commit.",
)
