"""Grows and shrinks elastic jobs, whatever kind they are."""
