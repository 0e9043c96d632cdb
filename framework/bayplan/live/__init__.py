"""The live scheduler: its loop, leader election, metrics and web page."""
