"""Benchmarks: a model's speed, compared with alternatives and with the hardware's limits."""
