"""Run every benchmark: `python -m benchmarks`."""

from benchmarks import bench, build, generate, generate_overhead, llm_build, reference, routes, sampling, serve

for module in (build, reference, generate, generate_overhead, llm_build, routes, sampling, serve, bench):
    module.main()
