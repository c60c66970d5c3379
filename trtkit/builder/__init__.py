"""Engines: profiles, builds in child processes, the build cache."""
