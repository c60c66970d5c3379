"""Tests of vision-language models. They run in one process and share its bundles."""
