"""The backend of a real API server: lists, watches and writes over HTTP."""
