"""Taking back what the module apt did, as far as apt can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.apt_calls import Apt, find_apt
from crossgrade.modules.apt_transaction import parse_simulation
from crossgrade.modules.contract import ApplyContext

LOG = "apt.log"
LOCK_SECONDS = 600.0
_KEEP_SETTINGS = ("-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold")


def undo(record: Mapping[str, JSON], context: ApplyContext) -> str:
    """Purge what was new and bring old versions back. Raises TaskError naming what could not come back."""
    before, around = record.get("before"), record.get("environment")
    if not isinstance(before, dict) or not isinstance(around, dict):
        return ""
    apt = find_apt(context.host, {str(name): str(value) for name, value in around.items()})
    apt.settle(context)
    there, installed = apt.there(), apt.installed()
    new = [name for name, version in before.items() if not version and name in there]
    lost = {name: str(version) for name, version in before.items() if version and installed.get(name) != version}
    offered = apt.offered(list(lost))
    back = [f"{name}={version}" for name, version in lost.items() if (name, version) in offered]
    gone = [f"{name} {version}" for name, version in lost.items() if (name, version) not in offered]
    done = []
    if back:
        options = ["--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages", *_KEEP_SETTINGS]
        _require_only(apt, ["install", *back], options, before)
        apt.change([*options, "install", *back], context, LOCK_SECONDS, LOG)
        done.append(f"brought {', '.join(back)} back")
    if new:
        there = apt.there()
        still = [name for name in new if name in there]
        _require_only(apt, ["purge", *still], [], before)
        apt.change(["purge", *still], context, LOCK_SECONDS, LOG)
        done.append(f"removed {', '.join(still)}")
    if gone:
        raise TaskError(
            f"no repository has these versions any more: {', '.join(gone)}; {'; '.join(done) or 'nothing else to do'}",
            remedy="Install them from an archive of packages, or leave the newer ones.",
        )
    return "; ".join(done)


def _require_only(apt: Apt, words: Sequence[str], options: Sequence[str], known: Mapping[str, JSON]) -> None:
    """Raises TaskError when that would touch packages that the task had not touched."""
    answer = apt.simulate(words[1:], options, verb=words[0], recommends=())
    others = [change.name for change in parse_simulation(answer.stdout) if change.name not in known]
    if not answer.succeeded or others:
        raise TaskError(
            f"apt-get {' '.join(words)} would also change {', '.join(others) or 'more'}: somebody has installed what "
            f"needs them since; {answer.stderr.strip()}"
        )
