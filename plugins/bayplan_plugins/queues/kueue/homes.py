"""Which job an object belongs to, and what belongs to a job."""

from __future__ import annotations

__all__ = ["Homes"]


class Homes:
    """The homes of jobs by the uids of the jobs and of what is between them and their pods."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._uids: dict[str, dict[str, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def get(self, uid: str) -> str | None:
        """Return the home of the job that an object belongs to; None for none."""
        return self._of.get(uid)

    def put(self, uid: str, home: str) -> None:
        """Note that an object belongs to a job."""
        if self._of.get(uid) != home:
            self.drop(uid)
            self._of[uid] = home
            self._uids.setdefault(home, {})[uid] = None

    def drop(self, uid: str) -> None:
        """Forget an object."""
        home = self._of.pop(uid, None)
        if home is not None:
            uids = self._uids[home]
            del uids[uid]
            if not uids:
                del self._uids[home]

    def take(self, home: str) -> list[str]:
        """Forget all that belongs to a job; return its uids."""
        uids = list(self._uids.pop(home, ()))
        for uid in uids:
            del self._of[uid]
        return uids
