"""Kinds of draft heads, which guess a language model's tokens: a folder for each, found by its name.

The layers below know a kind by `trtkit.models.speculators` only, and import these files of its folder when they are
needed:

`spec.py`: the head as data, without torch and TensorRT. `TITLE` and `SIGN`, the kind's name and what tells its
`config.json`, for people; `describes(fields)`, whether a `config.json` is that of such a head; `obstacles(target)`,
which yields why a model can have none; and its `SpeculatorSpec`, whose `kind` is the folder's name.
`build.py`: `open_folder(folder, target)` reads a head's folder for the model `target`: `OpenedSpeculator`.
`network.py`: `build_network(graph, spec, known, arrays, options)` adds its network to an empty graph.
`proposer.py`: `PROPOSER`, a class that guesses with an open head, of a model, the number of tokens to guess in a row
and that of all guesses (`trtkit.llm.engine.proposers.Proposer`).
`reference.py`: `logit_pairs(model, reference, opened, arrays, ids)` runs the network and an independent implementation
on a prompt.

Kinds do not import each other. What several need is in the modules next to their folders.
"""
