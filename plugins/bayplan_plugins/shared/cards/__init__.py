"""The ledger of cards: who holds which share of which card, whatever contract asked for it."""
