"""What was used: every allocation and every capacity as a record, kept across restarts."""
