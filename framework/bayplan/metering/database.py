"""Opens the database of a journal: SQLite in a file or in memory, or PostgreSQL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import NullPool, StaticPool

from bayplan.errors import InputError

__all__ = ["IN_MEMORY", "open_database", "problem_of"]

IN_MEMORY = ":memory:"
_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700
_DRIVERS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg"}


def open_database(place: str, create: bool) -> Engine:
    """Return the engine of a path, of ``:memory:``, or of a URL (sqlite or postgresql).

    :param create: whether to create the file, readable by its owner only, and its folder.
    :raises InputError: for a place that cannot be used; passwords are not shown.
    """
    url = _url_of(place)
    if url.get_backend_name() == "sqlite":
        return _sqlite(url, create)
    try:
        return create_engine(url, poolclass=NullPool)
    except ModuleNotFoundError as exc:
        raise InputError(
            f"{exc.name} is not installed: pip install 'bayplan[postgres]'", _shown(url)
        ) from None


def problem_of(engine: Engine, exc: SQLAlchemyError) -> InputError:
    """Return an error of the database in one line, without its password."""
    cause = getattr(exc, "orig", None) or exc
    return InputError(str(cause).strip().splitlines()[0], _shown(engine.url))


def _shown(url: URL) -> str:
    is_file = url.get_backend_name() == "sqlite"
    return url.database or IN_MEMORY if is_file else url.render_as_string(hide_password=True)


def _url_of(place: str) -> URL:
    if "://" not in place:
        return URL.create(_DRIVERS["sqlite"], database=place or IN_MEMORY)
    try:
        url = make_url(place)
    except (ArgumentError, ValueError):
        raise InputError("expected a path, or a URL such as postgresql://user@host/name") from None
    backend = url.drivername.partition("+")[0]
    backend = "postgresql" if backend == "postgres" else backend
    if backend not in _DRIVERS:
        raise InputError(f'expected sqlite or postgresql, got "{url.drivername}"', _shown(url))
    return url.set(drivername=_DRIVERS[backend])


def _sqlite(url: URL, create: bool) -> Engine:
    name = url.database or IN_MEMORY
    if name == IN_MEMORY:
        # One connection, because each would have a database of its own.
        engine = create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        _prepare_file(Path(name), create)
        engine = create_engine(url)
    event.listen(engine, "connect", _set_up_sqlite)
    return engine


def _prepare_file(path: Path, create: bool) -> None:
    try:
        if create:
            path.parent.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, _PRIVATE_FILE))
        elif not path.is_file():
            raise InputError("there is no such journal", str(path))
    except OSError as exc:
        raise InputError(exc.strerror or str(exc), str(path)) from None


def _set_up_sqlite(connection: Any, record: Any) -> None:
    cursor = connection.cursor()
    # FULL: what was acknowledged survives a power failure, too.
    for pragma in (
        "busy_timeout=5000",
        "journal_mode=WAL",
        "synchronous=FULL",
        "cache_size=-65536",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
