"""Engines: profiles, builds in a child process, bundles, the build cache."""
