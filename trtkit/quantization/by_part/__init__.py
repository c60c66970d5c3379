"""Hybrids and vision-language models, each part by a method of its own."""
