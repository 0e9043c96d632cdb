"""Volcano's plugins, as far as they vote on queues, jobs and victims."""
