"""Deployment of a bundle as a served model."""
