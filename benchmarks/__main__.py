"""Run every benchmark: `python -m benchmarks`."""

from benchmarks import bench, build, generate, llm_build, reference, routes, serve

for module in (build, reference, generate, llm_build, routes, serve, bench):
    module.main()
