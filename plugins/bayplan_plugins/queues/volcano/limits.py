"""What several plugins check alike: a request against the bound of a queue and its ancestors."""

from __future__ import annotations

from bayplan.queues.tree import EPSILON, AmountRows
from bayplan_plugins.queues.policy import QuotaRefusal
from bayplan_plugins.queues.volcano.session import Session

__all__ = ["first_over"]


def first_over(
    session: Session,
    row: int,
    request: AmountRows,
    most: AmountRows,
    bound: str,
    owed: AmountRows | None = None,
) -> QuotaRefusal | None:
    """Return the first resource of a request that takes a queue or an ancestor beyond a bound.

    :param most: what each queue may have, in the rows and columns of the tree.
    :param bound: what the bound is called.
    :param owed: what each queue is to get besides what it uses, in the columns of the request.
    """
    tree = session.tree
    request = session.wide(request)
    for one in session.path(row):
        have = tree.used[one] if owed is None else tree.used[one] + owed[one]
        over = session.counts(request) & (have + request > most[one] + EPSILON)
        for column in over.nonzero()[0].tolist():
            return QuotaRefusal(
                tree.name(row),
                tree.name(one),
                tree.resources[column],
                bound,
                float(most[one, column]),
                float(have[column]),
                float(request[column]),
            )
    return None
