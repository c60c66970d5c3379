"""The part that runs inside the server: models of Triton's Python backend on trtkit's runtime."""
