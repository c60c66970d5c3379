"""Run every benchmark: `python -m benchmarks`."""

from benchmarks import build

for module in (build,):
    module.main()
