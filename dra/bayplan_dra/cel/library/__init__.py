"""The functions of the ``device`` environment.

These are the functions of Kubernetes 1.36 for DRA selectors: CEL's standard library, optionals, the
Kubernetes libraries (quantity, semver, regex, lists, IP, CIDR, URL, format) and cel-go's
extensions (strings 2, lists 3, sets, math). Importing this package declares them all.
"""

from bayplan_dra.cel.library import collections, conversions, kubernetes, operators, strings
from bayplan_dra.cel.library.collections import sort_by_keys
from bayplan_dra.cel.library.registry import FUNCTIONS, Overload

__all__ = [
    "FUNCTIONS",
    "Overload",
    "collections",
    "conversions",
    "kubernetes",
    "operators",
    "sort_by_keys",
    "strings",
]
