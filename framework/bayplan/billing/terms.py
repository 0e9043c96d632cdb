"""What bills are computed by: a price list and accounts, from files that may change."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bayplan.billing.accounts import Accounts, load_accounts
from bayplan.billing.prices import PriceList, check_rewritten, load_prices
from bayplan.errors import InputError

__all__ = ["BillingTerms", "BillingTermsFiles"]

_log = logging.getLogger("bayplan.billing")
_Stamp = tuple[int, int, int] | None
"""What changes when a file does: its time, size and number; None without the file."""


class BillingTerms(msgspec.Struct, frozen=True):
    """A price list, and accounts in its currency.

    :raises InputError: when they are in two currencies.
    """

    prices: PriceList
    accounts: Accounts | None = None

    def __post_init__(self) -> None:
        if self.accounts is not None:
            self.accounts.check_currency(self.prices)


class BillingTermsFiles:
    """The files of billing terms, which are read again when they change.

    What cannot be used changes nothing: the terms that were read before hold.

    :param now: returns milliseconds since 1970.
    :raises InputError: when the files cannot be used at the start.
    """

    def __init__(
        self,
        prices: Path,
        accounts: Path | None = None,
        now: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._prices = prices
        self._accounts = accounts
        self._now = now
        self._stamps = self._look()
        self._terms = self._read()
        self.problem = ""
        """Why the files as they are now are not in use, "" if they are."""

    def terms(self) -> BillingTerms:
        """Return the terms as they were read last."""
        return self._terms

    def refresh(self, force: bool = False) -> None:
        """Read the files again if they have changed; ``force`` does not ask whether they have."""
        stamps = self._look()
        if stamps == self._stamps and not force:
            return
        # A file that changes while it is read is read again the next time.
        self._stamps = stamps
        try:
            new = self._read()
            check_rewritten(self._terms.prices, new.prices, self._now())
        except InputError as exc:
            self.problem = str(exc)
            _log.error("prices and accounts not reloaded: %s", exc)
            return
        self.problem = ""
        if new != self._terms:
            self._terms = new
            _log.info("prices and accounts reloaded")

    def _read(self) -> BillingTerms:
        accounts = None if self._accounts is None else load_accounts(self._accounts)
        return BillingTerms(load_prices(self._prices), accounts)

    def _look(self) -> tuple[_Stamp, _Stamp]:
        return _stamp(self._prices), _stamp(self._accounts)


def _stamp(path: Path | None) -> _Stamp:
    """Return the stamp of a file; that of a ConfigMap's is the one that its link leads to."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
