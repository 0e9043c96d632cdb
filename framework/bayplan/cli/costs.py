"""What the usage of a simulation costs."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

from bayplan.billing.earnings import Earnings, earnings
from bayplan.billing.prices import load_prices
from bayplan.cli.render import stdout
from bayplan.metering.journal import Journal
from bayplan.simulation import Simulation

__all__ = ["Costs"]


class Costs:
    """Adds up what a simulation that writes ``journal`` costs.

    :raises InputError: for a price list that cannot be used.
    """

    def __init__(self, price_file: Path) -> None:
        self._prices = load_prices(price_file)
        self.journal = Journal()

    def earnings(self, simulation: Simulation) -> Earnings:
        """Return what each tenant pays, and what idle capacity costs.

        :raises InputError: when there are no prices for the virtual time.
        """
        begin = round(simulation.cluster.start.timestamp() * 1000)
        return earnings(self._prices, self.journal, begin, self.journal.heartbeat)

    def print(self, simulation: Simulation) -> None:
        """Print what each tenant pays, and what idle capacity costs."""
        found = self.earnings(simulation)
        console = stdout()
        console.print(f"\n[bold]Costs[/bold]  in {found.currency}")
        rows = [*found.by_tenant.items(), ("(total)", found.total), ("(idle)", found.idle)]
        width = max(len(name) for name, _ in rows)
        for name, amount in rows:
            console.print(f"  {escape(name):{width}}  {amount:>14,}")
