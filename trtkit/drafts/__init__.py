"""Kinds of draft heads, which guess a language model's tokens: a folder for each, found by its name.

The layers below know what is in `trtkit.models.speculators` only, and import a file of a kind's folder when needed:

- `spec.py`, without torch and TensorRT: the draft head as data, a `SpeculatorSpec` whose `kind` is the folder's name.
  `describes(fields)` is whether a `config.json` is that of such a head, and `obstacles(target)` yields why a model can
  have none. `TITLE` and `SIGN` are the kind's name and what tells its `config.json`, for people.
- `build.py`: `open_folder(folder, target)` reads a draft head for the model `target` and returns `OpenedSpeculator`.
- `network.py`: `build_network(graph, spec, known, arrays, options)` adds its network to an empty graph.
- `proposer.py`: `PROPOSER(model, most, most_guesses)` guesses with the draft head of an open model: `most` tokens in a
  row, and alternatives up to `most_guesses` (`trtkit.llm.engine.proposers.Proposer`).
- `reference.py`: `logit_pairs(model, reference, opened, arrays, ids)` returns logits of the network, and those that an
  independent implementation gives for the same prompt.

Kinds do not import each other. What several need is in the modules next to their folders.
"""
