"""A worker of Dynamo's that tells the router only what its device holds: what `serve_turns` compares with."""

from dynamo.common.backend.run import run

from trtkit.deployment.dynamo.worker import BundleWorker
from trtkit.llm.cache.host.tier import HostTier

if __name__ == "__main__":
    HostTier.changes = lambda _self: iter(())  # type: ignore[assignment, method-assign]
    run(BundleWorker)
