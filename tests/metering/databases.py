"""Databases of tests: a PostgreSQL server, where its programs are installed, and journals."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import delete, update

from bayplan.metering import tables
from bayplan.metering.journal import Journal

_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/local/pgsql/bin")


def _programs() -> Path:
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    for place in _PLACES:
        folders = sorted(Path("/").glob(place[1:]))
        if folders:
            return folders[-1]
    return pytest.skip("PostgreSQL is not installed")


def _user() -> str | None:
    """Return the account to run it as: it refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    return pytest.skip("PostgreSQL does not run as root")


@contextmanager
def postgresql() -> Iterator[str]:
    """Run a server that listens on a socket in a folder of its own; yield its URL."""
    programs, user = _programs(), _user()
    folder = Path(tempfile.mkdtemp(prefix="bayplan-pg-"))
    data = folder / "data"
    if user is not None:
        shutil.chown(folder, user)

    def run(program: str, *arguments: str) -> None:
        command = [str(programs / program), *arguments]
        subprocess.run(
            command, check=True, user=user, cwd=folder, timeout=60, stdout=subprocess.DEVNULL
        )

    try:
        run("initdb", "-D", str(data), "-U", "meter", "-A", "trust", "-E", "UTF8")
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        run("pg_ctl", "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://meter@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-D", str(data), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def emptied(journal: Journal) -> Journal:
    """Return a journal without what was written to it.

    A new one would compile each of its statements again: half the time of a property.
    """
    with journal.transaction() as connection:
        for table in tables.metadata.sorted_tables:
            if table is not tables.journal:
                connection.execute(delete(table))
        connection.execute(update(tables.journal).values(writer="", batch=0, heartbeat=0))
    return journal
