"""Grows elastic jobs into idle capacity, and shrinks them before anybody is evicted."""

from bayplan_plugins.resizer.plugin import Resizer

__all__ = ["Resizer"]
