"""A Dynamo worker that reports only its device's cache to the router: the baseline of `serve_turns`."""

from dynamo.common.backend.run import run

from trtkit.deployment.dynamo.worker import BundleWorker
from trtkit.llm.cache.host.tier import HostTier

if __name__ == "__main__":
    HostTier.changes = lambda _self: iter(())  # type: ignore[assignment, method-assign]
    run(BundleWorker)
