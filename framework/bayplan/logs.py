"""Log lines: for people on a console, or as one JSON object each."""

from __future__ import annotations

import datetime
import json
import logging
import sys
from typing import TextIO

__all__ = ["ConsoleLines", "JsonLines", "print_notes", "set_up_logging"]

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One JSON object per line: ts, level, logger, msg, each ``extra``, and exception.

    ``ts`` is UTC with milliseconds (ISO 8601); ``exception`` is the traceback, where there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "ts": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        line |= _extra(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class ConsoleLines(logging.Formatter):
    """Time, level, message and each ``extra`` as key=value on one line; a traceback below it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%d %H:%M:%S")
        self._second = (0, "")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the local time, which is made into text once a second."""
        second, text = self._second
        if int(record.created) != second or not text:
            text = super().formatTime(record, datefmt)
            self._second = int(record.created), text
        return text

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without the traceback."""
        extra = (f"{key}={value}" for key, value in _extra(record).items())
        return " ".join(" ".join([super().formatMessage(record), *extra]).splitlines())


def _extra(record: logging.LogRecord) -> dict[str, object]:
    """Return what was given as ``extra`` with a record."""
    return {key: value for key, value in vars(record).items() if key not in _OWN}


def set_up_logging(
    form: str, level: int | str = logging.INFO, stream: TextIO | None = None
) -> None:
    """Send the logs of bayplan to a stream.

    :param form: console or json.
    :param stream: None for standard error.
    """
    # Nothing that the lines show; finding it out takes half the time of a record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else ConsoleLines())
    logger = logging.getLogger("bayplan")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False


class _Notes(logging.Handler):
    """Prints the texts of warnings to standard error, each once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a warning; errors are in what the command prints."""
        text = record.getMessage()
        if record.levelno == logging.WARNING and text not in self._seen:
            self._seen.add(text)
            print(f"note: {text}", file=sys.stderr)


def print_notes() -> None:
    """Print what is logged as a warning, until ``set_up_logging`` sends the logs elsewhere."""
    logging.getLogger("bayplan").handlers[:] = [_Notes()]
