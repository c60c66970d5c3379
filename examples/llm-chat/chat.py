"""Chat with a bundle from a program: `python chat.py BUNDLE`, one question per line; answers are streamed."""

from __future__ import annotations

import sys

from trtkit import LLM, SamplingParams

params = SamplingParams(temperature=0, max_tokens=64)
messages = [{"role": "system", "content": "You are a helpful assistant. Answer in one short sentence."}]
with LLM(sys.argv[1]) as llm:
    for question in sys.stdin:
        messages.append({"role": "user", "content": question.strip()})
        answer = ""
        for delta in llm.stream({"messages": messages}, params):
            print(delta.text, end="", flush=True)
            answer += delta.text
        print()
        messages.append({"role": "assistant", "content": answer})
