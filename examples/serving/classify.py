"""Classify an image with a served model: python examples/serving/classify.py photo.png."""

import sys
from pathlib import Path

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput

image = InferInput("image", [1, 1], "BYTES")
image.set_data_from_numpy(np.array([[Path(sys.argv[1]).read_bytes()]], dtype=np.object_))
answer = InferenceServerClient("localhost:8000").infer("efficientnet-lite0", [image])
print(answer.as_numpy("label")[0, 0].decode())
