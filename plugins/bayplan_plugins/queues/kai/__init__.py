"""The policy ``fair-share``: KAI's division of shares, limits, order and reclaim rules."""
