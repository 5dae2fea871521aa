"""What a systemd service's own command line needs for a newer version of the server that it starts. Pure.

crossgrade does not change it: the old version uses the line again when a run goes back, so it would have to change
together with the active link.
"""

from __future__ import annotations

import shlex

from crossgrade.facts.launch_line import read_line, translate
from crossgrade.facts.units import ExecStart
from crossgrade.gates.verdict import Finding
from crossgrade.jsontype import JSON


def judge_unit(unit: str, started: ExecStart | None, version: str, *, user: bool = False) -> tuple[Finding, ...]:
    """Warnings about the line of a unit; a note where it is fine. `started` is None where no file of it was found."""
    if started is None:
        return (Finding("warning", unit, f"no file of {unit} was found: its own command line was not looked at"),)
    line = read_line(started.words)
    if line is None:
        text = (
            f"{unit} starts {shlex.join(started.words[:2])}: which launch line that has is not known here; look there"
        )
        return (Finding("warning", unit, text, {"file": started.file}),)
    translation = translate(line, version)
    whose = f"{line.engine} {version}"
    found = [
        Finding("warning", unit, f"{unit} has {option}, which {whose} does not take: {advice}", {"file": started.file})
        for option, advice in translation.advice
    ]
    if translation.rewritten:
        changes = "; ".join(map(str, translation.rewritten))
        control = "systemctl --user" if user else "systemctl"
        evidence: dict[str, JSON] = {
            "file": started.file,
            "drop_in": "[Service]\nExecStart=\nExecStart=" + shlex.join(translation.line.concealed().words) + "\n",
        }
        text = (
            f"{unit} keeps its own command line, which {whose} does not take as it is: {changes}. Change it with "
            f"`{control} edit {unit}` when the candidate is activated, and back if you go back"
        )
        found.append(Finding("warning", unit, text, evidence))
    return tuple(found) or (Finding("note", unit, f"{unit}: {whose} calls the options of its command line the same"),)
