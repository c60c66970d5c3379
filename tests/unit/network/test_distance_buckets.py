"""Buckets of distances are those of transformers, edges included."""

from __future__ import annotations

import itertools

import torch
from transformers.models.t5.modeling_t5 import T5Attention

from trtkit.models.attention import RelativeSpec
from trtkit.network.rope_tables import distance_buckets

COUNT = 1500


def test_buckets_are_those_of_transformers() -> None:
    buckets, most = (4, 5, 8, 31, 32, 33, 128), (3, 9, 17, 20, 32, 64, 100, 128, 333, 1000)
    pairs = [(count, distance) for count, distance in itertools.product(buckets, most) if distance > count // 2]
    assert len(pairs) > 40
    for count, distance in pairs:
        wanted = T5Attention._relative_position_bucket(-torch.arange(COUNT), False, count, distance)
        found = distance_buckets(RelativeSpec(count, distance, 0), COUNT)
        assert found.tolist() == wanted.tolist(), (count, distance)
