"""What the API server refuses, in its words; what the typed objects check is not repeated here."""
