"""A decoder over several ranks: rank 0 schedules and samples, and broadcasts what every rank runs."""
