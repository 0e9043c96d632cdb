"""Which fields the kinds of Kubernetes and of its ecosystem have, and what is wrong in an object.

``kubernetes.json`` is written by ``docs/make_schemas.py``; ``ecosystem.json`` by hand. Both hold a
line per type: fields with ``[]`` for lists, ``{}`` for maps, and the name of a scalar, of a type of
the same package, or of another one with its package. ``required`` and how a strategic merge patch
treats the field (``merge=name``) follow the type.
"""

from bayplan.schemas.catalog import Record, record_of
from bayplan.schemas.problems import FieldProblem, Step, field_problems

__all__ = ["FieldProblem", "Record", "Step", "field_problems", "record_of"]
