"""One look at the queues of a scheduler: as a table, as a tree, or one of them in detail."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec
from rich.console import Console

from bayplan.explain.queue_text import print_queue, print_queues, print_tree
from bayplan.explain.queues import queue_detail, queues_json, some_queues
from bayplan.scheduler.scheduler import Scheduler

__all__ = ["QueueView", "ViewKind"]


class ViewKind(Enum):
    """What is shown."""

    LIST = "list"
    TREE = "tree"
    SHOW = "show"
    """One queue, with its ancestors, its children and its line."""


class QueueView(msgspec.Struct, frozen=True):
    """What somebody asked to see; ``name`` is the queue of ``SHOW``, ``NAME`` or ``SYSTEM/NAME``.

    Both methods raise InputError when there is no such queue, or none at all.
    """

    kind: ViewKind
    name: str = ""

    page = "/debug/queues"

    @property
    def asked(self) -> dict[str, str]:
        """The query of the page."""
        return {"view": self.kind.value, "name": self.name}

    def exists(self, scheduler: Scheduler) -> bool:
        """Tell whether there is any queue yet."""
        return bool(scheduler.queues.reports())

    def as_json(self, scheduler: Scheduler) -> dict[str, Any]:
        """Return it as one JSON object, with the cluster's time in seconds as ``at``."""
        if self.kind is ViewKind.SHOW:
            return {"at": round(scheduler.now, 3), **queue_detail(scheduler, self.name).as_json()}
        return queues_json(scheduler.now, some_queues(scheduler))

    def print(self, console: Console, scheduler: Scheduler) -> None:
        """Print it for people."""
        if self.kind is ViewKind.SHOW:
            print_queue(console, queue_detail(scheduler, self.name))
        elif self.kind is ViewKind.TREE:
            print_tree(console, some_queues(scheduler))
        else:
            print_queues(console, some_queues(scheduler))
