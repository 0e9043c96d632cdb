"""Texts that are nearly right: valid ones in which something was cut, doubled or put in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from hypothesis import strategies as st

__all__ = ["damaged", "damaged_by", "has_shape_of", "numbers_in"]

_PIECES = [",", ":", ";", "-1", "0", "99999999999", "1e3", "true", "null", "{", "}", "[", "]", '"']
_PIECES += ["\u0661", "1_0", " 7", "GPU-b", "\x00", "nan", "2147483648", '"size":', '"start": -1']
_PIECES += ["-", "", "9" * 30, "1e9", ".5", "{}", "[[", "\ud7ff", "=", "\n", "1e999", "0x10"]
_CHARACTERS = "ab017,:;{}[]\"'\\ \u00e9\u0661\n\x00=-+._/"
_NONSENSE = 0.1


def damaged(*valid: str) -> st.SearchStrategy[str]:
    """Return texts that were valid before something was cut, exchanged, doubled or put in."""
    return st.randoms(use_true_random=False).map(lambda chance: damaged_by(chance, *valid))


def damaged_by(chance: Random, *valid: str) -> str:
    """Return one of the valid texts with up to four damages; sometimes one of nothing but chance.

    Ten times as fast as drawing each damage from a strategy.
    """
    if chance.random() < _NONSENSE:
        return "".join(chance.choices(_CHARACTERS, k=chance.randrange(20)))
    text = chance.choice(valid)
    for _ in range(chance.randrange(5)):
        start = chance.randint(0, len(text))
        end = chance.randint(start, min(len(text), start + 12))
        piece = chance.choice((chance.choice(_PIECES), text[start:end] * 2, ""))
        text = text[:start] + piece + text[end:]
    return text


def has_shape_of(valid: str, rules: Mapping[str, Callable[[Any], bool]]) -> Callable[[str], bool]:
    """Return what tells whether a JSON text has values of the types that ``valid`` has.

    :param rules: what must hold of the value of a key instead, wherever the key is.
    """
    template = json.loads(valid)

    def check(text: str) -> bool:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return _same(value, template, rules)

    return check


def _same(value: Any, template: Any, rules: Mapping[str, Callable[[Any], bool]]) -> bool:
    if value is None:
        # As if the field were not there, for a decoder in Go.
        return True
    if type(value) is not type(template):
        return False
    if isinstance(template, list):
        return not template or all(_same(one, template[0], rules) for one in value)
    if not isinstance(template, dict):
        return True
    for key in value.keys() & template.keys() - rules.keys():
        if not _same(value[key], template[key], rules):
            return False
    known = value.keys() & template.keys() & rules.keys()
    return all(rules[key](value[key]) for key in known)


def numbers_in(text: str) -> set[int]:
    """Return the numbers that a text holds, as runs of digits."""
    plain = "".join(char if char in "0123456789" else " " for char in text)
    return {int(part) for part in plain.split()}
