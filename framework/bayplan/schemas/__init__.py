"""The fields of all kinds of Kubernetes and its ecosystem, and checks of objects against them.

``docs/make_schemas.py`` writes ``kubernetes.json``; ``ecosystem.json`` is written by hand. Both
have a line per type with its fields: ``[]`` for lists, ``{}`` for maps, then the name of a scalar,
of a type of the same package, or of another type with its package. ``required`` and the strategy of
a strategic merge patch (``merge=name``) follow the type.
"""

from bayplan.schemas.catalog import RecordType, record_of
from bayplan.schemas.problems import FieldProblem, Step, field_problems

__all__ = ["FieldProblem", "RecordType", "Step", "field_problems", "record_of"]
