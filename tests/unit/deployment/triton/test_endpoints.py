from __future__ import annotations

import socket

import pytest

from trtkit.deployment.triton.endpoints import Endpoints, free_ports, is_live, model_states
from trtkit.errors import DeployError


def test_urls_are_those_that_this_machine_can_ask() -> None:
    ends = Endpoints("0.0.0.0", 1, 2, 3)
    assert (ends.http, ends.grpc, ends.metrics) == (
        "http://127.0.0.1:1",
        "grpc://127.0.0.1:2",
        "http://127.0.0.1:3/metrics",
    )
    assert Endpoints("::1", 1, 2, 3).http == "http://[::1]:1"


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("10.1.2.3", False)],
)
def test_loopback(host: str, is_loopback: bool) -> None:
    assert Endpoints(host).is_loopback is is_loopback


def test_a_taken_port_is_an_error_that_names_its_option() -> None:
    ends = free_ports()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ends.grpc_port))
        taken.listen()
        with pytest.raises(DeployError) as error:
            ends.check_free()
    assert str(error.value) == (
        f"--grpc-port: cannot listen on port {ends.grpc_port} of 127.0.0.1: address already in use\n"
        "fix: choose another port, or stop the process that uses it"
    )
    ends.check_free()


def test_one_port_for_two_is_an_error() -> None:
    with pytest.raises(DeployError, match="port 8000 is used twice"):
        Endpoints(metrics_port=8000).check_free()


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_host_that_is_not_this_machine_is_an_error(host: str) -> None:
    with pytest.raises(DeployError, match="cannot listen on"):
        Endpoints(host, 0, 1, 2).check_free()


def test_nobody_there() -> None:
    ends = free_ports()
    assert not is_live(ends)
    with pytest.raises(DeployError, match="the server does not answer"):
        model_states(ends)
