"""Helpers and ledgers that several plugins share."""
