"""From a bundle to a served model."""
