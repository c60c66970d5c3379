"""Generates greedily with the custom decoder on the reference executor, then builds its engine with TensorRT-RTX."""

from __future__ import annotations

import torch
from decoder import LAYERS, H, K, T, new_graph

from trtkit.reference import Executor

graph = new_graph()
executor = Executor(graph.layers())
cache = {f"{kind}_{i}": torch.zeros(1, K, T, H) for i in range(LAYERS) for kind in ("key", "value")}
tokens, new, done = [3, 14, 15], [3, 14, 15], 0
while len(tokens) < 11:
    outputs = executor.run(
        {
            "input_ids": torch.tensor([new], dtype=torch.int32),
            "position_ids": torch.arange(done, done + len(new), dtype=torch.int32)[None],
            "write_indices": torch.tensor([done], dtype=torch.int32),
            "kv_lengths": torch.tensor([done + len(new)], dtype=torch.int32),
            **{f"past_{name}": value for name, value in cache.items()},
        }
    )
    cache = {name: outputs[f"present_{name}"] for name in cache}
    done, new = done + len(new), [int(outputs["logits"][0, -1].argmax())]
    tokens += new
print("tokens:", *tokens)

config, profile = graph.builder.create_builder_config(), graph.builder.create_optimization_profile()
for index in range(graph.network.num_inputs):
    tensor = graph.network.get_input(index)
    sizes = [[(b, s)[axis] if n < 0 else n for axis, n in enumerate(tensor.shape)] for b, s in ((1, 1), (1, 8), (4, T))]
    profile.set_shape(tensor.name, *sizes)
config.add_optimization_profile(profile)
plan = graph.builder.build_serialized_network(graph.network, config)
print("engine:", "built" if plan is not None else "failed")
