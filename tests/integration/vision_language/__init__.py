"""Tests of vision-language models; they run in one process and share its bundles."""
