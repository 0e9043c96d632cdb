"""From another system to bayplan and back: what may go, and what has to stay."""

from bayplan.migration.components import COMPONENTS, Component, System
from bayplan.migration.plan import Plan, plan_of

__all__ = ["COMPONENTS", "Component", "Plan", "System", "plan_of"]
