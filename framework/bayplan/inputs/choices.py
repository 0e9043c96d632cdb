"""Options with a few possible values, for commands."""

from __future__ import annotations

from typing import Any

import click

from bayplan.errors import did_you_mean

__all__ = ["OneOf"]


class OneOf(click.Choice[str]):
    """One of some words; what was probably meant is part of the message."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return the message for a word that is none of them."""
        near = did_you_mean(str(value), self.choices)
        return super().get_invalid_choice_message(value, ctx).rstrip(".") + near
