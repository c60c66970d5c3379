"""Where workers tell the router what they hold: a ZeroMQ proxy on the loopback address.

Without one, each of Dynamo's workers listens for the router on all addresses of the machine.
"""

from __future__ import annotations

import contextlib
import threading

import zmq


class Broker:
    """A running proxy. environment: what makes Dynamo's processes use it."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        publishers, subscribers = self._context.socket(zmq.XSUB), self._context.socket(zmq.XPUB)
        ports = [each.bind_to_random_port("tcp://127.0.0.1") for each in (publishers, subscribers)]
        self._thread = threading.Thread(target=_run, args=(publishers, subscribers), daemon=True)
        self._thread.start()
        url = f"xsub=tcp://127.0.0.1:{ports[0]} , xpub=tcp://127.0.0.1:{ports[1]}"
        self.environment = {"DYN_ZMQ_BROKER_URL": url, "DYN_ZMQ_BROKER_ENABLED": "true"}

    def close(self) -> None:
        """End it."""
        self._context.destroy(linger=0)
        self._thread.join()


def _run(publishers: zmq.Socket[bytes], subscribers: zmq.Socket[bytes]) -> None:
    with contextlib.suppress(zmq.ZMQError):  # its context has ended
        zmq.proxy(publishers, subscribers)
