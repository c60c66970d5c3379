"""Hosts and ports of this machine: who reaches them, whether one is free, and those that are."""

from __future__ import annotations

import contextlib
import ipaddress
import random
import socket
import urllib.request

from trtkit.errors import DeployError

open_local = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
"""`urlopen` for servers on this machine: proxies that the environment names do not reach them."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def reachable(host: str) -> str:
    """Return a host in a URL, as this machine reaches it."""
    host = "127.0.0.1" if host == "0.0.0.0" else host
    return f"[{host}]" if ":" in host else host


def check_free(host: str, port: int, option: str) -> None:
    """Raise DeployError where nobody can listen: the port is taken, or the host is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            what = f"cannot listen on port {port} of {host}: {(error.strerror or str(error)).lower()}"
            raise DeployError(what, option, "choose another port, or stop the process that uses it") from None


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen on a port now."""
    try:
        check_free(host, port, "")
    except DeployError:
        return False
    return True


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for listener in sockets:
            listener.bind((host, 0))
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()


def free_ports_below(limit: int, count: int, host: str = "127.0.0.1") -> list[int]:
    """Return different ports from 10,000 to `limit` that nobody listens on now.

    A system gives higher ones to whoever asks for any: a limit below them keeps these free until a server starts.
    """
    while True:
        with contextlib.ExitStack() as probes:
            ports = random.SystemRandom().sample(range(10_000, limit), count)
            with contextlib.suppress(OSError):
                for port in ports:
                    probes.enter_context(socket.socket()).bind((host, port))
                return ports
