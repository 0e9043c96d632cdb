"""How much of some manifests is loaded, for whoever waits."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["LoadProgress"]

_EVERY = 256
"""Entries between two reports."""


class LoadProgress:
    """Reports the bytes that are loaded of all bytes.

    A file's documents count as if they were equally large, and so do the objects of a list.

    :param report: called with how many bytes are loaded, and how many there are.
    :param paths: files, folders and archives.
    """

    def __init__(self, report: Callable[[int, int], None], paths: Sequence[Path]) -> None:
        self._report = report
        self._total = sum(map(_size, paths))
        self._before = 0.0
        self._file = 0.0
        self._part = 0.0
        self._entries = 0

    def file(self, size: int, documents: int) -> None:
        """A file begins, of this many bytes and documents."""
        self._before += self._file
        self._file = size
        self._part = size / max(1, documents)

    def entry(self, document: int, entry: int, entries: int) -> None:
        """An entry of a document is loaded; all numbers count from 1."""
        self._entries += 1
        if self._entries % _EVERY == 0:
            done = self._before + self._part * (document - 1 + entry / entries)
            self._report(round(min(done, self._total)), self._total)


def _size(path: Path) -> int:
    """Return the bytes of a file or folder, unpacked; 0 for what cannot be read."""
    try:
        if path.is_dir():
            return sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return sum(info.file_size for info in archive.infolist())
        return path.stat().st_size
    except (OSError, zipfile.BadZipFile):
        # Loading it says why.
        return 0
