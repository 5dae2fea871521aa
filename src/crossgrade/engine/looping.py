"""The items of a task's loop, and what each of them sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crossgrade.errors import CrossgradeError
from crossgrade.playbook.model import LoopControl, Task
from crossgrade.playbook.templating import DependsOnUnknown, Templar
from crossgrade.playbook.variables import Unknown


def loop_list(task: Task, templar: Templar, environment: Mapping[str, str], *, check_mode: bool) -> Sequence[Any]:
    """What the task's loop goes through. Raises DependsOnUnknown in a plan, CrossgradeError for what is no list.

    Ansible looks at `when` before the loop's list when the list cannot be templated: a condition that is false for
    every item anyway makes an undefined list harmless.
    """
    keyword = f"with_{task.loop_with}" if task.loop_with else "loop"
    spot = task.spot_of(keyword)
    try:
        items = templar.template(task.loop, spot)
        if isinstance(items, Unknown):
            raise DependsOnUnknown(items.origin, expression=str(task.loop))
        if task.loop_with:
            items = _looked_up(task.loop_with, items, templar, environment, check_mode=check_mode)
    except DependsOnUnknown:
        raise
    except (CrossgradeError, OSError, UnicodeDecodeError) as error:
        try:
            if task.when and not templar.all_hold(task.when, task.spot_of("when")):
                return ()
        except CrossgradeError:
            pass
        if isinstance(error, CrossgradeError):
            if error.place is None:
                raise CrossgradeError(error.message, remedy=error.remedy, place=spot.place) from error
            raise
        raise CrossgradeError(f"{keyword}: {error}", place=spot.place) from error
    if not isinstance(items, list | tuple):
        raise CrossgradeError(
            f"loop needs a list, not {type(items).__name__}: {task.loop!r}",
            remedy="Give a list, or turn a mapping into one with `| dict2items`.",
            place=spot.place,
        )
    return items


def _looked_up(
    name: str, given: Any, templar: Templar, environment: Mapping[str, str], *, check_mode: bool
) -> list[Any]:
    from crossgrade.playbook.loop_items import LoopPlaces, loop_items

    def lines_of(command: str) -> list[str]:
        if check_mode:
            raise DependsOnUnknown(f"what `{command}` prints")
        from crossgrade.process import run_process

        completed = run_process(["/bin/sh", "-c", command], env=environment, cwd=templar.directories[-1].absolute())
        if not completed.succeeded:
            raise CrossgradeError(f"with_lines: `{command}`: {completed.outcome()}: {completed.stderr.strip()}")
        return completed.stdout.splitlines()

    return loop_items(name, given, LoopPlaces(templar.directories, environment, lines_of, templar.foreseen))


def item_variables(control: LoopControl, items: Sequence[Any], index: int, templar: Templar) -> dict[str, Any]:
    """What an item's turn sees: the item, its index, and with `extended` also `ansible_loop`."""
    values: dict[str, Any] = {control.loop_var: items[index], "ansible_loop_var": control.loop_var}
    if control.index_var:
        values[control.index_var] = index
        values["ansible_index_var"] = control.index_var
    if templar.boolean(control.extended, default=False):
        length = len(items)
        loop: dict[str, Any] = {
            "index": index + 1,
            "index0": index,
            "first": index == 0,
            "last": index + 1 == length,
            "length": length,
            "revindex": length - index,
            "revindex0": length - index - 1,
        }
        if templar.boolean(control.extended_allitems, default=True):
            loop["allitems"] = list(items)
        if index + 1 < length:
            loop["nextitem"] = items[index + 1]
        if index > 0:
            loop["previtem"] = items[index - 1]
        values["ansible_loop"] = loop
    return values
