"""The ledger of devices that claims get: what there is, what is allocated, what trials change."""
