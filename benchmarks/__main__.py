"""Run every benchmark: `python -m benchmarks`."""

from benchmarks import build, generate, llm_build, reference, routes

for module in (build, reference, generate, llm_build, routes):
    module.main()
