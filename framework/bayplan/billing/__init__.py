"""What usage costs: price lists, invoices, budgets and cost allocation. Money is never a float."""
