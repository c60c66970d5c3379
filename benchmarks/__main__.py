"""Run every benchmark: `python -m benchmarks`."""

from benchmarks import build, llm_build, reference

for module in (build, reference, llm_build):
    module.main()
