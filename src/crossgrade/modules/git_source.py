"""A git repository at a revision as the source of a build.

A revision is resolved to a full commit when the plan is made: by `git ls-remote`, or in a clone on this machine. The
commit is fetched once, with its history and the tags (builds ask git for their version), into

    STORE/sources/git-COMMIT/      a bare repository, there when it is whole

and each build works in a checkout of its own that borrows its objects. No hook and no template of the user runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.errors import TaskError
from crossgrade.facts.indexes import shown_url
from crossgrade.modules.contract import ApplyContext, HostView
from crossgrade.store.layout import Store

if TYPE_CHECKING:
    from crossgrade.process import Completed

ASK_SECONDS = 30.0
_ORIGIN = "description"  # the file that git keeps in a bare repository for people
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SCP = re.compile(r"[\w.-]+@[\w.-]+:")  # git@github.com:owner/repository


@dataclass(frozen=True)
class GitSource:
    """A repository (URL, or path of a clone) and a revision of it. `mirrors`: beginning of URLs → another place."""

    repository: str
    revision: str
    mirrors: Mapping[str, str]

    @property
    def is_local(self) -> bool:
        return "://" not in self.repository and not _SCP.match(self.repository)

    @property
    def shown(self) -> str:
        return self.repository if self.is_local else shown_url(self.repository)


def git_environment(
    environment: Mapping[str, str], mirrors: Mapping[str, str], *, local: bool = False
) -> dict[str, str]:
    """Variables for git and whatever starts it: nothing asks at a terminal, and URLs are read from their mirrors.

    By git's own GIT_CONFIG_COUNT, so that submodules and CMake's FetchContent hear it too. A clone on this machine may
    be read from a submodule only where a mirror (or `local`) says so: git refuses it by default (CVE-2022-39253).
    """
    settings = [(f"url.{to}.insteadOf", start) for start, to in sorted(mirrors.items())]
    if local or any("://" not in to or to.startswith("file:") for to in mirrors.values()):
        settings.append(("protocol.file.allow", "always"))
    settings += [("core.hooksPath", "/dev/null"), ("advice.detachedHead", "false")]
    first = int(environment.get("GIT_CONFIG_COUNT") or 0)
    found = {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_COUNT": str(first + len(settings)), "LC_ALL": "C"}
    if "GIT_SSH_COMMAND" not in environment:
        found["GIT_SSH_COMMAND"] = "ssh -o BatchMode=yes"
    for number, (name, value) in enumerate(settings, first):
        found |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return found


# ---- resolving


def commit_of(source: GitSource, host: HostView) -> str:
    """The full commit that the revision stands for; in a run, the one that the plan found. Raises TaskError."""
    if _COMMIT.fullmatch(source.revision):
        return source.revision
    return host.pinned(f"git {source.shown} {source.revision}", lambda: look_up(source, host))


def require_plain(source: GitSource) -> None:
    """Raises TaskError for what git would take for an option, or for a helper program to start."""
    for text, what in ((source.repository, "repository"), (source.revision, "revision")):
        if not text or text.startswith("-") or "\0" in text or "\n" in text:
            raise TaskError(f"{text!r} is no {what}")
    if re.match(r"\w+::", source.repository):
        raise TaskError(f"{source.shown} would start a helper program", remedy="Give an https, ssh or file URL.")


def look_up(source: GitSource, host: HostView) -> str:
    """Ask the repository itself what the revision stands for now. Raises TaskError."""
    environment = git_environment(host.environment, source.mirrors, local=source.is_local)
    if source.is_local:
        name = f"{source.revision}^{{commit}}"
        answer = _ask(["-C", source.repository, "rev-parse", "--verify", "--end-of-options", name], environment, host)
        if not answer.succeeded:
            raise TaskError(f"{source.repository} has no revision {source.revision}: {last_words(answer)}")
        return answer.stdout.split()[-1]  # rev-parse echoes --end-of-options before git 2.42
    if re.fullmatch(r"[0-9a-f]{7,39}", source.revision):
        raise TaskError(
            f"{source.revision} looks like a shortened commit, which cannot be asked for from {source.shown}",
            remedy="Give all of its digits, or a branch or tag.",
        )
    answer = _ask(["ls-remote", "--", source.repository, source.revision, f"{source.revision}^{{}}"], environment, host)
    if not answer.succeeded:
        raise unreachable(source.shown, answer)
    return chosen_commit(answer.stdout, source.revision, source.shown)


def chosen_commit(listing: str, revision: str, shown: str) -> str:
    """The commit of a branch or tag in what `git ls-remote` printed. Pure. Raises TaskError.

    A name matches by its end there (`main` finds `refs/heads/old/main` too), so the exact ones are picked.
    """
    lines = [line.split("\t", 1) for line in listing.splitlines() if "\t" in line]
    refs = {ref: commit for commit, ref in lines}
    tag = refs.get(f"refs/tags/{revision}^{{}}") or refs.get(f"refs/tags/{revision}")
    branch = refs.get(f"refs/heads/{revision}")
    if tag and branch and tag != branch:
        raise TaskError(
            f"{revision} is a branch and a tag of {shown}",
            remedy=f"Give refs/heads/{revision} or refs/tags/{revision}.",
        )
    found = tag or branch or refs.get(f"{revision}^{{}}") or refs.get(revision)
    if not found:
        raise TaskError(f"{shown} has no branch or tag {revision}", remedy="Give a branch, a tag or a full commit.")
    return found


def unreachable(shown: str, answer: Completed) -> TaskError:
    return TaskError(
        f"git cannot read {shown}: {last_words(answer)}",
        remedy="Check the network, the proxy (HTTPS_PROXY) and the credentials; or name a clone on this machine in "
        "`git`, or another place for the beginning of the URL in `mirrors`.",
    )


def last_words(answer: Completed) -> str:
    """What git said of a failure, in one line, without passwords in URLs."""
    from crossgrade.failures.secrets import without_secrets

    lines = [line.strip() for line in answer.stderr.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "")
    return without_secrets(said) or answer.outcome()


def _ask(argv: Sequence[str], environment: Mapping[str, str], host: HostView) -> Completed:
    from crossgrade.process import StartError

    try:
        return host.run(["git", *argv], environment=environment, timeout=ASK_SECONDS)
    except StartError as error:
        raise TaskError(f"git cannot be started: {error}", remedy="Install it: apt install git") from error


def file_at(source: GitSource, commit: str, path: str, host: HostView) -> str | None:
    """The text of a file at a commit, from a clone on this machine or the store's; None where it is not here yet."""
    place = repository_at(source, commit, host.store)
    if place is None:
        return None
    answer = _ask(["-C", str(place), "show", f"{commit}:{path}"], git_environment(host.environment, {}), host)
    return answer.stdout if answer.succeeded else None


def names_at(source: GitSource, commit: str, folder: str, host: HostView) -> list[str]:
    """Paths of the files right below a folder at a commit; none where it cannot be read yet."""
    place = repository_at(source, commit, host.store)
    if place is None:
        return []
    argv = ["-C", str(place), "ls-tree", "--name-only", commit, "--", f"{folder}/" if folder else "."]
    answer = _ask(argv, git_environment(host.environment, {}), host)
    return answer.stdout.splitlines() if answer.succeeded else []


def repository_at(source: GitSource, commit: str, store: Store) -> Path | None:
    """A repository on this machine that has the commit's files."""
    kept = kept_repository(store, commit)
    if kept.is_dir():
        return kept
    return Path(source.repository) if source.is_local else None


def kept_repository(store: Store, commit: str) -> Path:
    return store.sources / f"git-{commit}"


# ---- fetching


def fetch(source: GitSource, commit: str, context: ApplyContext, work: Path) -> Path:
    """The store's bare repository with the commit, fetched where it is not there. `work` is a folder of the step.

    Raises TaskError.
    """
    kept = kept_repository(context.store, commit)
    if kept.is_dir():
        return kept
    new = work / "repository"
    environment = git_environment(context.host.environment, source.mirrors, local=source.is_local)
    context.progress(f"fetching {commit[:12]} of {source.shown}")
    _must(context, ["init", "--bare", "--quiet", "--template=", str(new)], environment, "make a repository")
    _borrow(context, new, source, environment)
    wanted = [f"+{commit}:refs/heads/wanted", "+refs/tags/*:refs/tags/*"]
    answer = _fetch(context, new, source, wanted, environment)
    if not answer.succeeded:  # some hosts give only what a branch or tag points at
        answer = _fetch(context, new, source, ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"], environment)
        if not answer.succeeded:
            raise unreachable(source.shown, answer)
        if not _git(context, ["-C", str(new), "cat-file", "-e", f"{commit}^{{commit}}"], environment).succeeded:
            raise TaskError(
                f"{source.shown} has no commit {commit} any more",
                remedy="The branch was rewritten since the plan, or the commit never was pushed: make a new plan.",
            )
    kept.parent.mkdir(mode=0o700, exist_ok=True)
    new.rename(kept)
    return kept


def _borrow(context: ApplyContext, new: Path, source: GitSource, environment: Mapping[str, str]) -> None:
    """Take over what earlier fetches brought, so that the next commit of a repository is a small download."""
    (new / _ORIGIN).write_text(f"{source.shown}\n", encoding="utf-8")
    for other in sorted(context.store.sources.glob("git-*")):
        if (other / _ORIGIN).read_text(encoding="utf-8").strip() != source.shown:
            continue
        _git(
            context,
            ["-C", str(new), "fetch", "--quiet", "--no-tags", str(other), "+refs/*:refs/earlier/*"],
            environment,
        )


def _fetch(
    context: ApplyContext, new: Path, source: GitSource, wanted: Sequence[str], environment: Mapping[str, str]
) -> Completed:
    argv = [
        "-C",
        str(new),
        "fetch",
        "--no-write-fetch-head",
        "--no-tags",
        "--progress",
        "--",
        source.repository,
        *wanted,
    ]
    return _git(context, argv, environment)


def check_out(
    source: GitSource, repository: Path, commit: str, place: Path, context: ApplyContext, *, submodules: bool
) -> None:
    """A working tree of the commit, with its submodules. Raises TaskError."""
    environment = git_environment(context.host.environment, source.mirrors, local=source.is_local)
    clone = ["clone", "--quiet", "--shared", "--no-checkout", "--template=", str(repository), str(place)]
    _must(context, clone, environment, f"make a checkout of {commit[:12]}")
    origin = ["-C", str(place), "remote", "set-url", "origin", source.repository]  # for submodules by relative URLs
    _must(context, origin, environment, "name the origin")
    _must(
        context, ["-C", str(place), "checkout", "--quiet", "--detach", commit], environment, f"check {commit[:12]} out"
    )
    if not (place / ".gitmodules").is_file() or not submodules:
        return
    context.progress(f"fetching the submodules of {source.shown}")
    update = ["-C", str(place), "submodule", "update", "--init", "--recursive", "--progress"]
    answer = _git(context, update, environment)
    if not answer.succeeded:
        raise TaskError(
            f"the submodules of {source.shown} cannot be fetched: {last_words(answer)}",
            remedy="Name a place on this machine for the beginning of their URLs in `mirrors`, or set `submodules: "
            "false` when the build does without them.",
        )


def _must(context: ApplyContext, argv: Sequence[str], environment: Mapping[str, str], what: str) -> None:
    answer = _git(context, argv, environment)
    if not answer.succeeded:
        raise TaskError(f"git could not {what}: {last_words(answer)}")


def _git(context: ApplyContext, argv: Sequence[str], environment: Mapping[str, str]) -> Completed:
    return context.run(["git", *argv], environment=environment, log_name="git.log")
