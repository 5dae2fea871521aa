"""A module that builds a wheel, out of its arguments and what it knows of the project."""

from __future__ import annotations

from functools import partial

from crossgrade.modules import build_run, building
from crossgrade.modules.building import A, Project, State
from crossgrade.modules.contract import Module


def build_module(name: str, arguments: type[A], project: Project[A], summary: str) -> Module[A, State]:
    return Module(
        name=name,
        arguments=arguments,
        effect="changes",
        inspect=partial(building.inspect, project),
        plan=building.plan,
        apply=partial(build_run.apply, project),
        undo=build_run.undo,
        summary=summary,
    )
