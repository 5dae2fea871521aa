"""Opening the journal of a store for a command that changes something. Imports little: `rollback` is in a hurry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from crossgrade.engine.journal import Journal, JournalDamagedError, open_journal
from crossgrade.store.layout import Store


@contextmanager
def opened_journal(store: Store, *, create: bool = False) -> Iterator[Journal]:
    """The journal of a store for writing. A damaged one is told with everything that is still known.

    Raises StoreError. Needs the lock.
    """
    try:
        journal = open_journal(store.journal_path, create=create)
        try:
            yield journal
        finally:
            journal.close()
    except JournalDamagedError as error:
        from crossgrade.engine.damage import explained

        raise explained(error, store) from error
