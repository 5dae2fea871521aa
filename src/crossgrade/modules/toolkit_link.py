"""The link that builds find a toolkit by (/usr/local/cuda): pointed elsewhere on request, and kept as it was otherwise.

NVIDIA's packages make it an alternative (update-alternatives(1)), runfiles make it a plain link. A plain link is
changed by the operations of the module `file`, with their undo; an alternative by update-alternatives, since the
next package would turn back what was changed behind its back.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import ApplyContext, Change, Difference, HostView
from crossgrade.modules.file_operations import MakeLink, perform, plan_change
from crossgrade.modules.files import Entry, entry_at, look
from crossgrade.places import nearest_existing
from crossgrade.store.atomic import replace_link

ALTERNATIVES_SECONDS = 60.0
PRIORITY = 1  # below what packages ask for: it is only taken because it is set by name


@dataclass(frozen=True)
class Alternative:
    """One group of update-alternatives: its name and link, whether it chooses by itself, what it leads to now, and
    everything that it could lead to."""

    name: str
    link: str
    automatic: bool
    value: str
    choices: tuple[str, ...]


@dataclass(frozen=True)
class LinkState:
    """What lies at the link's place; `alternative` where update-alternatives looks after it."""

    entry: Entry
    target: str
    alternative: Alternative | None

    @property
    def is_right(self) -> bool:
        """Whether the link leads to its target already."""
        if self.alternative is not None:
            return self.alternative.value == self.target
        return self.entry.kind == "link" and self.entry.target == self.target


def read_alternative(text: str) -> Alternative:
    """From what ``update-alternatives --query NAME`` prints. Pure; raises ValueError."""
    head, *others = re.split(r"\n\s*\n", text.strip())
    fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    choices = [
        line.split(": ", 1)[1] for part in others for line in part.splitlines() if line.startswith("Alternative:")
    ]
    try:
        return Alternative(
            fields["Name"], fields["Link"], fields["Status"] == "auto", fields.get("Value", ""), tuple(choices)
        )
    except KeyError as error:
        raise ValueError(f"update-alternatives says no {error.args[0]}") from error


def look_at_link(link: Path, target: str, host: HostView) -> LinkState:
    """Raises TaskError where the link cannot be changed: a real file or directory, or no permission."""
    entry = look(link, host)
    if entry.kind not in ("absent", "link", "unknown"):
        raise TaskError(
            f"{link} is a {entry.state}, no link: it is left alone",
            remedy=f"Move it away (mv {link} {link}.old), or leave `link` out.",
        )
    state = LinkState(entry, target, alternative_behind(entry, host))
    if not state.is_right and not os.access(nearest_existing(link.parent), os.W_OK):
        raise TaskError(
            f"{link} cannot be changed: uid {os.geteuid()} may not write to {link.parent}",
            remedy="Run crossgrade as root, or leave `link` out: builds find the toolkit by CUDA_HOME.",
        )
    return state


def alternative_behind(entry: Entry, host: HostView) -> Alternative | None:
    """The group of update-alternatives that a link belongs to; None for any other link."""
    if entry.kind != "link" or Path(entry.target).parent.name != "alternatives":
        return None
    name = Path(entry.target).name
    program = shutil.which("update-alternatives", path=host.environment.get("PATH", os.defpath))
    if program is None:
        raise TaskError(f"{entry.path} belongs to update-alternatives, which is not on PATH")
    completed = host.run([program, "--query", name], environment={"LC_ALL": "C"}, timeout=ALTERNATIVES_SECONDS)
    try:
        if not completed.succeeded:
            raise ValueError(completed.stderr.strip() or completed.outcome())
        return read_alternative(completed.stdout)
    except ValueError as error:
        raise TaskError(
            f"{entry.path} leads to {entry.target}, but update-alternatives does not answer for {name}: {error}",
            remedy=f"Mend it by hand (update-alternatives --config {name}), or leave `link` out.",
        ) from error


# ---- plan


def plan_link(state: LinkState) -> Change:
    """The change that points the link at its target. Pure."""
    path, target = state.entry.path, state.target
    if state.alternative is None:
        before = f"link to {state.entry.target}" if state.entry.kind == "link" else state.entry.state
        return plan_change(
            f"point {path} at {target}",
            [MakeLink(state.entry, target)],
            {},
            [Difference(str(path), before, f"link to {target}")],
        )
    alternative = state.alternative
    how = f"{alternative.value}{' (automatically)' if alternative.automatic else ''}"
    return Change(
        f"point {path} at {target}",
        (Difference(f"alternative {alternative.name} ({path})", how, target),),
        payload={"alternative": alternative, "target": target},
    )


# ---- apply and undo


def set_link(change: Change, context: ApplyContext) -> None:
    """Carry out what `plan_link` planned, as one journaled step. Raises TaskError and OSError."""
    if "operations" in change.payload:
        perform(change, context)
        return
    alternative: Alternative = change.payload["alternative"]
    target: str = change.payload["target"]
    with context.step(change.summary, _record(alternative, target), by_hand=[_by_hand(alternative)]):
        if target not in alternative.choices:
            _alternatives(context, "--install", alternative.link, alternative.name, target, str(PRIORITY))
        _alternatives(context, "--set", alternative.name, target)


def _record(alternative: Alternative, target: str) -> dict[str, JSON]:
    """What undo must know of an alternative that may come to lead to `target`."""
    return {
        "method": "alternative",
        "name": alternative.name,
        "link": alternative.link,
        "automatic": alternative.automatic,
        "value": alternative.value,
        "added": "" if target in alternative.choices else target,
    }


def _by_hand(alternative: Alternative) -> str:
    if alternative.automatic:
        return f"update-alternatives --auto {alternative.name}"
    return f"update-alternatives --set {alternative.name} {alternative.value}"


def undo_alternative(record: Mapping[str, JSON], context: ApplyContext) -> str:
    """Let an alternative lead where it led; harmless when it does. Raises TaskError."""
    name, value, added = str(record["name"]), str(record["value"]), str(record["added"])
    program = shutil.which("update-alternatives", path=context.host.environment.get("PATH", os.defpath))
    query = context.host.run([program or "update-alternatives", "--query", name], environment={"LC_ALL": "C"})
    if not query.succeeded:
        return ""
    now = read_alternative(query.stdout)
    changed = False
    if now.value != value and value in now.choices:
        _alternatives(context, "--set", name, value)
        changed = True
    if record["automatic"] and (changed or not now.automatic):
        _alternatives(context, "--auto", name)
        changed = True
    if added and added in now.choices:
        _alternatives(context, "--remove", name, added)
        changed = True
    return f"pointed {record['link']} back at {value}" if changed else ""


# ---- keeping a link that nobody asked to change


def keep_link(link: Path, context: ApplyContext) -> Mapping[str, JSON]:
    """Journal where a link leads before something else (a package, an installer) may turn it.

    The step has no effect of its own; its undo, and `put_link_back`, let the link lead there again.
    """
    entry = entry_at(link)
    alternative = alternative_behind(entry, context.host)
    record: dict[str, JSON] = {
        "method": "kept link",
        "path": str(link),
        "kind": entry.kind,
        "target": entry.target,
        "alternative": None if alternative is None else _record(alternative, alternative.value),
    }
    by_hand = [f"ln -sfn {entry.target} {link}"] if entry.kind == "link" else []
    with context.step(f"keep {link} as it is", record, by_hand=by_hand):
        return record


def put_link_back(
    record: Mapping[str, JSON], context: ApplyContext, *, undoing: bool = False, remove_new: bool = False
) -> str:
    """Let a link lead where it led when it was journaled; says what was done. Raises TaskError and OSError.

    A link that was not there before stays where a package has made it, and goes with the package (`remove_new`: it
    goes at once); when a run is taken back, one that leads nowhere is removed.
    """
    link = Path(str(record["path"]))
    now = entry_at(link)
    if record["kind"] == "link" and (now.kind, now.target) != ("link", record["target"]):
        if now.kind not in ("link", "absent"):
            raise TaskError(f"{link} is a {now.state} now: it is left alone", remedy=f"It led to {record['target']}.")
        replace_link(link, Path(str(record["target"])))
        done = f"pointed {link} back at {record['target']}"
    elif record["kind"] == "absent" and now.kind == "link" and (remove_new or (undoing and not link.exists())):
        link.unlink()
        done = f"removed {link}"
    else:
        done = ""
    alternative = record["alternative"]
    if isinstance(alternative, dict):
        # one that chooses by itself would go to what is new: it is set by name until the run is taken back
        held = alternative if undoing else {**alternative, "automatic": False}
        done = undo_alternative(held, context) or done
    return done


def _alternatives(context: ApplyContext, *arguments: str) -> None:
    program = shutil.which("update-alternatives", path=context.host.environment.get("PATH", os.defpath))
    completed = context.run([program or "update-alternatives", *arguments], timeout=ALTERNATIVES_SECONDS)
    if not completed.succeeded:
        raise TaskError(f"update-alternatives {' '.join(arguments)}: {completed.stderr.strip() or completed.outcome()}")
