"""Tests against a real tritonserver; those of one folder run in one process and share a server."""
