"""Label selectors, compiled once and compared by content."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bayplan.api.meta import LabelSelector

__all__ = ["EVERYTHING", "NOTHING", "Requirement", "Selector", "compile_selector"]


class Requirement(msgspec.Struct, frozen=True):
    """One requirement: In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def describe(self) -> str:
        """Return the requirement in the syntax of kubectl's ``--selector``."""
        values = ",".join(sorted(self.values))
        if self.operator == "In":
            return f"{self.key}={values}" if len(self.values) == 1 else f"{self.key} in ({values})"
        if self.operator == "NotIn":
            return f"{self.key} notin ({values})"
        return self.key if self.operator == "Exists" else f"!{self.key}"

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether the labels meet the requirement; NotIn holds for a missing key."""
        value = labels.get(self.key)
        if self.operator == "In":
            return value in self.values if value is not None else False
        if self.operator == "NotIn":
            return value not in self.values if value is not None else True
        if self.operator == "Exists":
            return value is not None
        return value is None


class Selector(msgspec.Struct, frozen=True):
    """Requirements that all have to hold; with ``never`` it selects nothing."""

    requirements: tuple[Requirement, ...] = ()
    never: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether the selector selects the labels."""
        return not self.never and all(term.matches(labels) for term in self.requirements)

    def describe(self) -> str:
        """Return the selector in the syntax of kubectl's ``--selector``."""
        return ",".join(term.describe() for term in self.requirements) or "any labels"

    def also(self, *requirements: Requirement) -> Selector:
        """Return this selector with further requirements."""
        return Selector(self.requirements + requirements, self.never)


EVERYTHING = Selector()
NOTHING = Selector(never=True)


def compile_selector(selector: LabelSelector | None) -> Selector:
    """Compile a LabelSelector: an empty one selects everything, an absent one nothing."""
    if selector is None:
        return NOTHING
    terms = [
        Requirement(key, "In", frozenset((value,)))
        for key, value in sorted(selector.match_labels.items())
    ]
    terms += [
        Requirement(term.key, term.operator, frozenset(term.values))
        for term in selector.match_expressions
    ]
    return Selector(tuple(terms))
