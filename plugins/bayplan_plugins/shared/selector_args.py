"""Selectors of labels, as arguments of plugins."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import Field

from bayplan import Args
from bayplan.api.meta import LabelSelector, SelectorRequirement
from bayplan.api.selectors import Selector, compile_selector

__all__ = ["RequirementArgs", "SelectorArgs"]


class RequirementArgs(Args):
    """One requirement of a selector."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()


class SelectorArgs(Args):
    """A selector of labels; an empty one selects everything."""

    match_labels: dict[str, str] = Field(default_factory=dict)
    match_expressions: tuple[RequirementArgs, ...] = ()

    @cached_property
    def compiled(self) -> Selector:
        """The selector, to match labels with."""
        terms = tuple(
            SelectorRequirement(one.key, one.operator, one.values) for one in self.match_expressions
        )
        return compile_selector(LabelSelector(self.match_labels, terms))
