"""Tests against a real tritonserver. They run in one process and share servers."""
