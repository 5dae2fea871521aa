"""A callback for ansible-playbook that prints what happened as JSON lines, to be compared with crossgrade's events."""

from __future__ import annotations

import json
import sys
from typing import Any

from ansible.plugins.callback import CallbackBase  # type: ignore[import-untyped]

DOCUMENTATION = """
name: conformance_events
type: stdout
short_description: JSON lines
description: Prints what happened as JSON lines.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "conformance_events"

    def _say(self, event: str, **data: Any) -> None:
        sys.stdout.write(json.dumps({"event": event, **data}, default=str) + "\n")
        sys.stdout.flush()

    def _result(self, result: Any, status: str, *, item: bool = False) -> None:
        values = result._result
        if not item and values.get("results") and result._task.loop is not None:
            status = f"all {status}"  # its items were told one by one
        label = self._get_item_label(values) if item else None
        self._say(
            "result",
            host=result._host.get_name(),
            task=result._task._uuid,
            name=result._task_fields.get("name") or result._task.action,  # without the role before it
            module=result._task.action,
            status="changed" if status == "ok" and values.get("changed") else status,
            item=None if label is None else str(label),
            is_item=item,
            values={key: value for key, value in values.items() if not key.startswith("_ansible")},
        )

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._say("play", name=play.get_name().strip())

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:  # noqa: ARG002 - Ansible's signature
        self._say("task", name=task.get_name().strip(), task=task._uuid, handler=False)

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        self._say("task", name=task.get_name().strip(), task=task._uuid, handler=True)

    def v2_runner_on_ok(self, result: Any) -> None:
        self._result(result, "ok")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._result(result, "ignored" if ignore_errors else "failed")

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._result(result, "skipped")

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._result(result, "unreachable")

    def v2_runner_item_on_ok(self, result: Any) -> None:
        self._result(result, "ok", item=True)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        self._result(result, "failed", item=True)

    def v2_runner_item_on_skipped(self, result: Any) -> None:
        self._result(result, "skipped", item=True)

    def v2_playbook_on_include(self, included_file: Any) -> None:
        self._say("include", file=str(included_file._filename), hosts=[h.name for h in included_file._hosts])

    def v2_playbook_on_stats(self, stats: Any) -> None:
        for host in sorted(stats.processed):
            self._say("recap", host=host, **stats.summarize(host))
