"""Which gangs there are, what defines them, and when one has enough members."""
