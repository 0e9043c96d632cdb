"""One module per ecosystem: it translates labels, annotations and objects into bayplan's terms."""

from bayplan.dialects.gangs import gang_of, may_be_evicted, membership_of

__all__ = ["gang_of", "may_be_evicted", "membership_of"]
