"""What crossgrade knows about the field, as tables with a source for each row.

Each table is a YAML file beside this one: a list under ``rows``, each row with at least a ``source``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

from crossgrade.jsontype import JSON

Row = Mapping[str, JSON]


@cache
def table(name: str) -> tuple[Row, ...]:
    """The rows of ``name``.yml in the order of the file. Raises `FileNotFoundError` for an unknown table."""
    import yaml  # loaded on first use: a command that reads no table does not pay for it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = resources.files(__name__).joinpath(f"{name}.yml").read_text(encoding="utf-8")
    document = yaml.load(text, Loader=loader)  # noqa: S506  # one of the two safe loaders, chosen above
    return tuple(document["rows"])
