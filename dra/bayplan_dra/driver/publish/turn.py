"""Which instance of the driver publishes while two overlap in a rolling update: the newest."""

from __future__ import annotations

import logging
from pathlib import Path

from bayplan_dra.driver.files import answers, write_atomically

__all__ = ["Turn"]

log = logging.getLogger("bayplan.driver")


class Turn:
    """The right to publish: the last instance that took it has it while its socket answers.

    :param path: a file that all instances share.
    :param own: the socket of this instance, in the same folder.
    """

    def __init__(self, path: Path, own: Path) -> None:
        self._path = path
        self._own = own

    def take(self) -> None:
        """Take the right from any other instance."""
        try:
            write_atomically(self._path, self._own.name.encode())
        except OSError as exc:
            log.warning("%s: %s; another instance may publish as well", self._path, exc.strerror)

    def is_mine(self) -> bool:
        """Tell whether this instance has it: nobody took it later, or that one is gone."""
        try:
            holder = self._path.read_text("utf-8", "replace")
        except OSError:
            return True
        return holder == self._own.name or not answers(self._path.with_name(Path(holder).name))
