"""The leases in the SQLite log: which live owner each partition is suggested to, while it beats."""

import contextlib
import sqlite3
from collections.abc import Iterable
from functools import partial

from refold.log.leases import Lease, share_of
from refold.log.processes import ProcessMark, boot_ms, is_surely_dead, this_process
from refold.log.sqlite_commits import Commits
from refold.log.sqlite_transactions import transaction


class Leases:
    """The leases of one namespace. Every call but `owner_lives` runs inside a transaction."""

    def __init__(self, namespace: int, partition_count: int, lease_ms: int) -> None:
        self.namespace, self.partition_count, self.lease_ms = namespace, partition_count, lease_ms

    def suggest(self, connection: sqlite3.Connection, owner: str) -> frozenset[int]:
        """One heartbeat of `owner`, and the partitions that are its own now."""
        now_ms = boot_ms()
        connection.execute(
            "INSERT INTO owners VALUES (?, ?, (SELECT coalesce(max(joined), 0) + 1 FROM owners),"
            " ?, ?, ?, ?, ?)"
            " ON CONFLICT (namespace, owner) DO UPDATE SET boot_id = excluded.boot_id,"
            " pid_namespace = excluded.pid_namespace, pid = excluded.pid,"
            " started = excluded.started, heartbeat_boot_ms = excluded.heartbeat_boot_ms",
            (self.namespace, owner, *this_process(), now_ms),
        )
        members = self._members(connection, owner, now_ms)
        leases = {
            partition: Lease(holder, bool(leaving))
            for partition, holder, leaving in connection.execute(
                "SELECT partition, owner, leaving FROM leases WHERE namespace = ?",
                (self.namespace,),
            )
        }
        share = share_of(owner, members, leases, self.partition_count)
        connection.executemany(
            "DELETE FROM leases WHERE namespace = ? AND partition = ?",
            [(self.namespace, partition) for partition in share.freed],
        )
        connection.executemany(
            "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)",
            [(self.namespace, partition, owner, 0) for partition in sorted(share.taken)]
            + [(self.namespace, partition, owner, 1) for partition in sorted(share.leaving)],
        )
        return share.suggested

    def _members(self, connection: sqlite3.Connection, owner: str, now_ms: int) -> list[str]:
        """The live owners in the order in which they joined; the dead are forgotten."""
        members: list[str] = []
        for member, heartbeat_ms, *mark in connection.execute(
            "SELECT owner, heartbeat_boot_ms, boot_id, pid_namespace, pid, started FROM owners"
            " WHERE namespace = ? ORDER BY joined",
            (self.namespace,),
        ).fetchall():
            # A heartbeat of the future is one of before the last boot.
            beating = abs(now_ms - heartbeat_ms) < self.lease_ms
            if member != owner and (not beating or is_surely_dead(ProcessMark(*mark))):
                self.free(connection, member)
            else:
                members.append(member)
        return members

    def beat(self, connection: sqlite3.Connection, owners: Iterable[str]) -> None:
        """A heartbeat of each of `owners` that is still known; one taken for dead joins anew."""
        now_ms = boot_ms()
        connection.executemany(
            "UPDATE owners SET heartbeat_boot_ms = ? WHERE namespace = ? AND owner = ?",
            [(now_ms, self.namespace, owner) for owner in owners],
        )

    def free(self, connection: sqlite3.Connection, owner: str) -> None:
        """Forget `owner`: its partitions are free."""
        for table in ("leases", "owners"):
            connection.execute(
                f"DELETE FROM {table} WHERE namespace = ? AND owner = ?", (self.namespace, owner)
            )

    def owner_lives(self, connection: sqlite3.Connection, partition: int) -> bool | None:
        """Whether the partition's owner lives: False if there is none or it is surely dead.

        None where nothing can be said: its heartbeat has stopped, but its process may be frozen.
        """
        row = connection.execute(
            "SELECT heartbeat_boot_ms, boot_id, pid_namespace, pid, started"
            " FROM leases JOIN owners USING (namespace, owner)"
            " WHERE namespace = ? AND partition = ?",
            (self.namespace, partition),
        ).fetchone()
        if row is None or is_surely_dead(ProcessMark(*row[1:])):
            return False
        return True if abs(boot_ms() - row[0]) < self.lease_ms else None


class Heartbeats:
    """The owners of one handle, whose leases its writer keeps. On the writer's connection only."""

    def __init__(self, leases: Leases) -> None:
        self.leases = leases
        self._owners: dict[str, int] = {}
        """When each has had its last heartbeat."""

    def suggest(self, connection: sqlite3.Connection, owner: str) -> frozenset[int]:
        """`Leases.suggest`; from now on the owner's heartbeat is kept going."""
        self._owners[owner] = boot_ms()
        return self.leases.suggest(connection, owner)

    def give_up(self, connection: sqlite3.Connection, owner: str) -> None:
        """No more heartbeats of `owner`: its partitions are free."""
        self._owners.pop(owner, None)
        self.leases.free(connection, owner)

    def due_in_s(self) -> float | None:
        """Seconds until a heartbeat is due; None if nobody needs one."""
        if not self._owners:
            return None
        return max(0.0, (min(self._owners.values()) + self.leases.lease_ms // 5 - boot_ms()) / 1000)

    def beat(self, commits: Commits) -> None:
        """One heartbeat of all."""
        # A heartbeat that fails is none, and the lease may run out: no more than that, as a lease
        # only suggests. The next one is tried when it is due.
        with contextlib.suppress(sqlite3.Error):
            if commits.lost() is None:
                transaction(commits.connection, partial(self.leases.beat, owners=self._owners))
        self._owners = dict.fromkeys(self._owners, boot_ms())

    def free_all(self, commits: Commits) -> None:
        """The handle ends: forget its owners, unless its file was lost."""
        if commits.lost() is not None:
            return
        for owner in list(self._owners):
            # As above: what is not freed now is free when the lease has run out.
            with contextlib.suppress(sqlite3.Error):
                transaction(commits.connection, partial(self.leases.free, owner=owner))
