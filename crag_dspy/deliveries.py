"""The webhook's inbox on disk: a delivery is taken once, by whichever process, and worked off even if that process ends before."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

KEEP_SECONDS = 30 * 86_400.0  # senders try again for days, under the same id
ATTEMPTS = 3  # for a delivery at which the process dies, or the index fails
_TABLE = """CREATE TABLE IF NOT EXISTS deliveries
    (id TEXT PRIMARY KEY, payload TEXT NOT NULL, received REAL NOT NULL, attempts_left INTEGER NOT NULL)"""

_GIVEN_UP = "(attempts_left = 0 AND payload != '')"  # all attempts failed; one that succeeded has no payload any more


class Deliveries:
    """Deliveries by their ids, in an SQLite file that is made when it is first used; processes and threads may share it.

    Every call raises `sqlite3.Error` or `OSError` where the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def holds(self, id: str) -> bool:
        """Return whether a delivery was added before, and not given up since."""
        with self._opened() as database:
            return database.execute(f"SELECT 1 FROM deliveries WHERE id = ? AND NOT {_GIVEN_UP}", (id,)).fetchone() is not None

    def add(self, id: str, payload: str, now: float) -> bool:
        """Take a delivery; return whether it is new, or was given up before. Of several who add one id at once, one is told so."""
        with self._opened() as database:
            database.execute(f"DELETE FROM deliveries WHERE id = ? AND {_GIVEN_UP}", (id,))
            database.execute("DELETE FROM deliveries WHERE received < ? AND attempts_left = 0", (now - KEEP_SECONDS,))
            added = database.execute("INSERT OR IGNORE INTO deliveries VALUES (?, ?, ?, ?)", (id, payload, now, ATTEMPTS))
            return added.rowcount == 1

    def next(self) -> tuple[str, str] | None:
        """Return id and payload of one that is not finished, and count an attempt at it; only one may work at a time.

        Those that were not tried yet come first, of these the oldest.
        """
        with self._opened() as database:
            waiting = "SELECT id, payload FROM deliveries WHERE attempts_left > 0 ORDER BY attempts_left DESC, received, rowid LIMIT 1"
            row: tuple[str, str] | None = database.execute(waiting).fetchone()
            if row:
                database.execute("UPDATE deliveries SET attempts_left = attempts_left - 1 WHERE id = ?", row[:1])
            return row

    def waits(self, id: str) -> bool:
        """Return whether a delivery will be tried again."""
        with self._opened() as database:
            return database.execute("SELECT 1 FROM deliveries WHERE id = ? AND attempts_left > 0", (id,)).fetchone() is not None

    def put_back(self, id: str) -> None:
        """Leave a delivery to whoever works next: this was no attempt."""
        with self._opened() as database:
            database.execute("UPDATE deliveries SET attempts_left = attempts_left + 1 WHERE id = ?", (id,))

    def finish(self, id: str) -> None:
        """Keep of a delivery only that it was there."""
        with self._opened() as database:
            database.execute("UPDATE deliveries SET attempts_left = 0, payload = '' WHERE id = ?", (id,))

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self.path, timeout=10)) as database, database:
            database.execute(_TABLE)
            yield database
