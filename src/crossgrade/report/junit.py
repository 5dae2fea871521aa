"""The document of a run as JUnit XML, for CI servers: its gates and its tasks as test cases.

The elements and attributes are those of the schema that Jenkins publishes for its xUnit plugin (junit-10.xsd), which
GitLab and others read too. A gate that did not run is `skipped`, never a success; where that stopped the run, its task
is the failure. A failed rollback is an error.
"""

from __future__ import annotations

from xml.etree import ElementTree

from crossgrade.report.document import Document, Gate, Step
from crossgrade.report.page import when
from crossgrade.report.visible import visible


def render_junit(document: Document) -> str:
    """The XML, with its declaration."""
    root = ElementTree.Element("testsuites", name="crossgrade")
    gates = _suite(root, "gates", document, len(document.gates))
    for gate in document.gates:
        _gate(gates, gate)
    steps = _suite(root, "tasks", document, len(document.steps) + 1)
    for step in document.steps:
        _step(steps, step)
    _ending(steps, document)
    for suite in (gates, steps):
        for kind, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            suite.set(attribute, str(len(suite.findall(f"./testcase/{kind}"))))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False).join(
        ('<?xml version="1.0" encoding="UTF-8"?>\n', "\n")
    )


def _suite(root: ElementTree.Element, name: str, document: Document, tests: int) -> ElementTree.Element:
    suite = ElementTree.SubElement(root, "testsuite", name=f"crossgrade.{name}", tests=str(tests))
    if document.started is not None:
        suite.set("timestamp", when(document.started).removesuffix(" UTC").replace(" ", "T"))
    suite.set("hostname", visible(document.host) or "unknown")
    seconds = sum(each.seconds for each in (document.steps if name == "tasks" else document.gates))
    suite.set("time", f"{seconds:.3f}")
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in (("run", document.run), ("playbook", document.playbook), ("outcome", document.outcome)):
        ElementTree.SubElement(properties, "property", name=key, value=visible(value))
    return suite


def _case(suite: ElementTree.Element, group: str, name: str, seconds: float = 0.0) -> ElementTree.Element:
    attributes = {"classname": visible(f"crossgrade.{group}"), "name": visible(name), "time": f"{seconds:.3f}"}
    return ElementTree.SubElement(suite, "testcase", attributes)


def _add(case: ElementTree.Element, kind: str, message: str, text: str = "") -> None:
    element = ElementTree.SubElement(case, kind, message=visible(message))
    element.text = visible(text) or None


def _gate(suite: ElementTree.Element, gate: Gate) -> None:
    case = _case(suite, f"gates.{gate.gate}", gate.name, gate.seconds)
    told = "\n".join(f"{found.level}: {found.subject}: {found.message}" for found in gate.findings)
    if gate.outcome == "failed":
        _add(case, "failure", gate.reason, told)
    elif gate.outcome == "not run":
        _add(case, "skipped", f"not run: {gate.reason}")
    said = ElementTree.SubElement(case, "system-out")
    said.text = visible("\n".join(line for line in (gate.reason, gate.remark, told) if line))


def _step(suite: ElementTree.Element, step: Step) -> None:
    case = _case(suite, f"tasks.{step.module}", step.name, step.seconds)
    if step.failed:
        known = "\n".join(f"{each.kind}: {each.cause}\nremedy: {each.remedy}" for each in step.explanations)
        _add(case, "failure", step.message, known)
    elif step.status == "skipped":
        _add(case, "skipped", step.message or "skipped")
    if step.message:
        ElementTree.SubElement(case, "system-out").text = visible(step.message)


def _ending(suite: ElementTree.Element, document: Document) -> None:
    """The run as a whole: a run that was killed, or not taken back, has no failed task that says so."""
    case = _case(suite, "run", "The run came to a good end")
    if document.rollback_failed:
        what = "\n".join("\n".join((what, *commands)) for what, commands in document.rollback_failed)
        _add(case, "error", document.outcome, what)
    elif document.state != "done":
        _add(case, "failure", document.outcome, document.reason)
