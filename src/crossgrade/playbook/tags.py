"""Which tasks `--tags` and `--skip-tags` choose, as Ansible chooses them."""

from __future__ import annotations

from collections.abc import Collection


def is_selected(tags: Collection[str], only: Collection[str] = (), skip: Collection[str] = ()) -> bool:
    """Whether a task with these tags runs.

    `only` may hold `all`, `tagged` and `untagged` beside names; empty means `all`. A task tagged `always`
    runs unless `skip` names one of its tags; one tagged `never` runs only when `only` names one of its tags.
    """
    own = set(tags) or {"untagged"}
    wanted = set(only) or {"all"}
    unwanted = set(skip)
    selected = (
        "always" in own
        or ("all" in wanted and "never" not in own)
        or bool(own & wanted)
        or ("tagged" in wanted and own != {"untagged"} and "never" not in own)
    )
    if not selected or not unwanted:
        return selected
    if "all" in unwanted:
        return "always" in own and "always" not in unwanted
    return not (own & unwanted) and not ("tagged" in unwanted and own != {"untagged"})
