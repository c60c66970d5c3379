"""Jobs: work in a separate process, since TensorRT may abort, hold memory or need to be cancelled.

A test runs all jobs of a library call or a command in its own process with `with inline_jobs():` of
`trtkit.jobs.runner` (or an autouse fixture of it), or passes `InlineRunner()` to a function that takes a runner.
"""
