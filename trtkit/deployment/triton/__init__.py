"""Deployment to Triton Inference Server: repositories, servers, checks."""
