"""Work in a process of its own: TensorRT may abort, hold memory, or have to be cancelled.

A test does all jobs of a library call or a command in its own process with `with inline_jobs():` of
`trtkit.jobs.runner` (or an autouse fixture of it), or passes `InlineRunner()` where a function takes a runner.
"""
