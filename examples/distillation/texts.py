"""Splits Python's own documentation into `train.txt` and `held-out.txt`, which share no paragraph."""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics

paragraphs = [text.split("\n\n") for _, text in sorted(topics.items())]
held_out = [paragraph for number, text in enumerate(paragraphs) if number % 8 == 0 for paragraph in text]
seen, train = set(held_out), []
for paragraph in (each for text in paragraphs for each in text):
    if paragraph not in seen:  # topics repeat paragraphs of each other
        seen.add(paragraph)
        train.append(paragraph)
Path("train.txt").write_text("\n\n".join(train), encoding="utf-8")
Path("held-out.txt").write_text("\n\n".join(dict.fromkeys(held_out)), encoding="utf-8")
