"""Run every benchmark: `python -m benchmarks`."""

from benchmarks import build, reference

for module in (build, reference):
    module.main()
