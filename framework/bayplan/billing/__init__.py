"""What usage costs: price lists, invoices, budgets, and the shapes in which others read them."""
