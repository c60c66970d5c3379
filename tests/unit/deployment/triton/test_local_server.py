from __future__ import annotations

import pytest

from trtkit.deployment.triton.local_server import ServerLog, is_noise, level, message

FAILED = "E1121 14:52:31.534400 9054 model_lifecycle.cc:642] \"failed to load 'm' version 1: Internal: no\""
NO_GPU = 'E1121 14:31:55.793187 29650 server.cc:241] "CudaDriverHelper has not been initialized."'


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        (FAILED, "E", "failed to load 'm' version 1: Internal: no"),
        ('W1121 14:31:57.257413 29650 metrics.cc:798] "a warning"', "W", "a warning"),
        ("I1121 14:31:57.247171 29650 server.cc:604] ", "I", ""),
        ("what a model prints", "I", "what a model prints"),
        ("Error: what it prints is no level", "I", "Error: what it prints is no level"),
    ],
)
def test_lines(line: str, kind: str, text: str) -> None:
    assert (level(line), message(line)) == (kind, text)


def test_a_machine_without_a_gpu_is_no_error() -> None:
    assert is_noise(NO_GPU)
    log = ServerLog()
    log.lines.extend([NO_GPU, FAILED, FAILED])
    assert log.errors() == ["failed to load 'm' version 1: Internal: no"]


def test_a_long_log_keeps_its_end() -> None:
    log = ServerLog()
    log.lines.extend(f"line {index}" for index in range(10_000))
    assert len(log.lines) == 4000
    assert log.text.endswith("line 9999")
