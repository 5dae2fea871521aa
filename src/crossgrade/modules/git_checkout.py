"""The effects of the module git: cloning, moving a clone, and taking either back."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import ApplyContext
from crossgrade.modules.git_source import GitSource, git_environment, last_words, unreachable

if TYPE_CHECKING:
    from crossgrade.modules.git import Arguments
    from crossgrade.process import Completed

LOG = "git.log"
_IDENTITY = ("-c", "user.name=crossgrade", "-c", "user.email=crossgrade@localhost")  # a stash is a commit
_SAVED = "refs/crossgrade/overwritten"  # what `force` overwrote, kept from git's garbage collection


@dataclass(frozen=True)
class Checkout:
    """A clone as it is: its commit, the branch that it is on ("": none), its remote's address, local changes."""

    commit: str
    branch: str
    url: str
    changed: bool = False


class _Git:
    """git in one folder, with every word an argument of its own."""

    def __init__(self, program: str, folder: Path | None, source: GitSource | None, context: ApplyContext) -> None:
        local = source is not None and (source.is_local or source.repository.startswith("file:"))
        self._environment = git_environment(context.host.environment, {}, local=local)
        self._begins = [program, *(["-C", str(folder)] if folder is not None else [])]
        self._context = context

    def ask(self, *words: str) -> Completed:
        return self._context.run([*self._begins, *words], environment=self._environment, log_name=LOG)

    def must(self, what: str, *words: str) -> str:
        answer = self.ask(*words)
        if not answer.succeeded:
            raise TaskError(f"git could not {what}: {last_words(answer)}")
        return answer.stdout


# ---- cloning


def clone(arguments: Arguments, source: GitSource, dest: Path, commit: str, branch: str, context: ApplyContext) -> None:
    """Clone beside the destination and put it there by one rename. Raises TaskError."""
    token = sha256(f"{context.run_id}\0{dest}".encode()).hexdigest()[:12]
    work = dest.parent / f".crossgrade-{token}.git-tmp"
    missing = [folder for folder in (dest.parent, *dest.parent.parents) if not folder.exists()]
    record: dict[str, JSON] = {
        "kind": "clone",
        "dest": str(dest),
        "work": str(work),
        "empty_before": dest.is_dir(),
        "made": [str(folder) for folder in missing],
    }
    with context.step(f"clone {source.shown} into {dest}", record, by_hand=[f"rm -r {shlex.quote(str(dest))}"]):
        dest.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(work, ignore_errors=True)
        context.progress(f"cloning {source.shown}")
        words = ["clone", "--quiet", "--template=", "--origin", arguments.remote]
        words += ["--bare"] if arguments.bare else ["--no-checkout"]
        words += ["--depth", str(arguments.depth)] if arguments.depth else []
        words += ["--single-branch"] if arguments.single_branch else []
        words += ["--branch", branch] if branch else []
        answer = _Git(arguments.executable, None, source, context).ask(*words, "--", source.repository, str(work))
        if not answer.succeeded:
            raise unreachable(source.shown, answer)
        git = _Git(arguments.executable, work, source, context)
        if not arguments.bare:
            _fetch(git, arguments, source, commit)
            if branch:
                git.must(f"check {branch} out", "checkout", "--quiet", "--force", "-B", branch, commit)
            else:
                git.must(f"check {commit} out", "checkout", "--quiet", "--force", "--detach", commit)
            _submodules(git, arguments, work)
        _verify(git, arguments, commit)
        if dest.is_dir():
            dest.rmdir()
        work.rename(dest)


# ---- moving


def update(
    arguments: Arguments,
    source: GitSource,
    dest: Path,
    commit: str,
    branch: str,
    here: Checkout,
    context: ApplyContext,
) -> None:
    """Bring a clone to a commit. Raises TaskError."""
    git = _Git(arguments.executable, dest, source, context)
    saved = ""
    if here.changed:
        saved = git.must("keep the local changes", *_IDENTITY, "stash", "create").strip()
    refs = git.must("list its branches", "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads").splitlines()
    moved = [line for line in refs if arguments.bare or line.startswith(f"refs/heads/{branch} ")]
    record: dict[str, JSON] = {
        "kind": "update",
        "dest": str(dest),
        "program": arguments.executable,
        "bare": arguments.bare,
        "commit": here.commit,
        "branch": here.branch,
        "moving": branch,
        "refs": list(moved),
        "remote": arguments.remote,
        "url": here.url,
        "saved": saved,
        "submodules": arguments.recursive,
    }
    place = shlex.quote(str(dest))
    by_hand = [f"git -C {place} checkout {here.branch or here.commit}", f"git -C {place} reset --hard {here.commit}"]
    with context.step(f"move {dest} to {commit[:12]}", record, by_hand=[] if arguments.bare else by_hand):
        if saved:
            git.must("keep the local changes", "update-ref", _SAVED, saved)
        if here.url != source.repository:
            verb = "set-url" if here.url else "add"
            git.must("name the remote", "remote", verb, arguments.remote, source.repository)
        context.progress(f"fetching {source.shown}")
        if arguments.bare:
            _fetch(git, arguments, source, commit, branches="+refs/heads/*:refs/heads/*")
        else:
            _fetch(git, arguments, source, commit)
            if branch:
                git.must(f"check {branch} out", "checkout", "--quiet", "--force", "-B", branch, commit)
                git.ask("branch", "--quiet", f"--set-upstream-to={arguments.remote}/{branch}", branch)
            else:
                git.must(f"check {commit} out", "checkout", "--quiet", "--force", "--detach", commit)
            _submodules(git, arguments, dest)
        _verify(git, arguments, commit)


def _fetch(git: _Git, arguments: Arguments, source: GitSource, commit: str, *, branches: str = "") -> None:
    """Branches, tags and the refspec, and the commit itself where those do not bring it."""
    depth = ["--depth", str(arguments.depth)] if arguments.depth else []
    wanted = [branches or f"+refs/heads/*:refs/remotes/{arguments.remote}/*", "+refs/tags/*:refs/tags/*"]
    wanted += [arguments.refspec] if arguments.refspec else []
    if not _has(git, commit) or arguments.refspec or branches:
        answer = git.ask("fetch", "--quiet", "--force", "--update-head-ok", *depth, "--", arguments.remote, *wanted)
        if not answer.succeeded:
            raise unreachable(source.shown, answer)
    if not _has(git, commit):
        answer = git.ask("fetch", "--quiet", "--no-tags", *depth, "--", arguments.remote, commit)
        if not answer.succeeded or not _has(git, commit):
            raise TaskError(f"{source.shown} has no commit {commit}", remedy="It may have been rewritten: plan again.")


def _has(git: _Git, commit: str) -> bool:
    return git.ask("cat-file", "-e", f"{commit}^{{commit}}").succeeded


def _submodules(git: _Git, arguments: Arguments, folder: Path) -> None:
    if not arguments.recursive or not (folder / ".gitmodules").is_file():
        return
    git.must("read the submodules' addresses", "submodule", "--quiet", "sync", "--recursive")
    words = ["submodule", "--quiet", "update", "--init", "--recursive"]
    words += ["--remote"] if arguments.track_submodules else []
    words += ["--force"] if arguments.force else []
    git.must("fetch the submodules", *words)


def _verify(git: _Git, arguments: Arguments, commit: str) -> None:
    if arguments.verify_commit:
        git.must(f"verify the signature of {commit}", "verify-commit", commit)


# ---- undo


def undo(record: Mapping[str, JSON], context: ApplyContext) -> str:
    """Remove a clone that was made, or bring one back to where it was. Raises TaskError with what git said."""
    dest = Path(str(record["dest"]))
    if record["kind"] == "clone":
        return _undo_clone(record, dest)
    if not dest.is_dir():
        return ""
    git = _Git(str(record["program"]), dest, None, context)
    commit, branch, saved = (str(record[name]) for name in ("commit", "branch", "saved"))
    if saved and git.ask("rev-parse", "--verify", "--quiet", _SAVED).stdout.strip() != saved:
        return ""  # keeping it is the first thing that is done and forgetting it the last that is undone
    _give_url_back(git, str(record["remote"]), str(record["url"]))
    _give_refs_back(git, record, commit, branch)
    if saved:
        if not git.ask(*_IDENTITY, "stash", "apply", "--quiet", "--index", saved).succeeded:
            git.must("bring the local changes back", *_IDENTITY, "stash", "apply", "--quiet", saved)
        git.ask("update-ref", "-d", _SAVED)
    return f"{dest} is at {commit[:12]} again"


def _undo_clone(record: Mapping[str, JSON], dest: Path) -> str:
    shutil.rmtree(Path(str(record["work"])), ignore_errors=True)
    is_clone = (dest / ".git").exists() or (dest / "HEAD").is_file()
    if is_clone:
        shutil.rmtree(dest)
    if record["empty_before"]:
        dest.mkdir(exist_ok=True)
    made = record["made"]
    for folder in made if isinstance(made, list) else ():
        with suppress(OSError):  # somebody else has put something there
            Path(str(folder)).rmdir()
    return f"removed {dest}" if is_clone else ""


def _give_url_back(git: _Git, remote: str, url: str) -> None:
    now = git.ask("config", "--get", f"remote.{remote}.url").stdout.strip()
    if now == url:
        return
    if url:
        git.must("give the remote its address back", "remote", "set-url", remote, url)
    else:
        git.must("forget the remote", "remote", "remove", remote)


def _give_refs_back(git: _Git, record: Mapping[str, JSON], commit: str, branch: str) -> None:
    refs = dict(str(line).split(" ", 1) for line in _list(record["refs"]))
    if record["bare"]:
        now = git.must("list its branches", "for-each-ref", "--format=%(refname)", "refs/heads").split()
        for name in now:
            if name not in refs:
                git.must("remove a new branch", "update-ref", "-d", name)
        for name, value in refs.items():
            git.must("move a branch back", "update-ref", name, value)
        return
    if not commit:
        return  # it had no commit yet; what was fetched does no harm
    moving = str(record["moving"])
    if branch:
        git.must("go back", "checkout", "--quiet", "--force", "-B", branch, commit)
    else:
        git.must("go back", "checkout", "--quiet", "--force", "--detach", commit)
    if moving and moving != branch:
        name = f"refs/heads/{moving}"
        if name in refs:
            git.must("move a branch back", "update-ref", name, refs[name])
        else:
            git.ask("branch", "--quiet", "--delete", "--force", moving)
    if record["submodules"] and git.ask("config", "--file", ".gitmodules", "--list").succeeded:
        git.ask("submodule", "--quiet", "update", "--init", "--recursive", "--force")


def _list(value: JSON) -> Sequence[JSON]:
    return value if isinstance(value, list) else ()
