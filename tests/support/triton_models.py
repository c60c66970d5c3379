"""Models for Triton's Python backend, correct ones and faulty ones."""

TENSORS = """\
input { name: "x" data_type: TYPE_FP32 dims: 2 }
output { name: "y" data_type: TYPE_FP32 dims: 2 }
"""
DOUBLES = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        print("asked for", len(requests), flush=True)
        found = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x * 2)]))
        return found
"""
# Answers every request with ones.
ONES = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        shapes = [(pb_utils.get_input_tensor_by_name(request, "images").shape()[0], 5) for request in requests]
        answers = [pb_utils.Tensor("logits", np.ones(shape, np.float32)) for shape in shapes]
        return [pb_utils.InferenceResponse([each]) for each in answers]
"""
REFUSES = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("out of memory")
        return [pb_utils.InferenceResponse(error=error) for request in requests]
"""
SPELLS = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode()
            for word in text.split():
                piece = np.array([word.encode()], dtype=object)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", piece)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
FAILS = (
    "\nclass TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('the weights are gone')\n"
)
# A preprocessing step, whose outputs have the names of the engine's inputs.
FLIPS = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(request, "pixels").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("images", each[..., ::-1].copy())]) for each in found]
"""
FLIP_TENSORS = """
max_batch_size: 4
input { name: "pixels" data_type: TYPE_FP32 dims: [3, 16, 16] }
output { name: "images" data_type: TYPE_FP32 dims: [3, 16, 16] }
"""
TEXT = """
input { name: "text_input" data_type: TYPE_STRING dims: 1 }
output { name: "text_output" data_type: TYPE_STRING dims: 1 }
model_transaction_policy { decoupled: true }
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "pixels" data_type: TYPE_FP32 dims: [3, 16, 16] }
output { name: "scores" data_type: TYPE_FP32 dims: 5 }
ensemble_scheduling {
  step {
    model_name: "flip"
    model_version: -1
    input_map { key: "pixels" value: "pixels" }
    output_map { key: "images" value: "flipped" }
  }
  step {
    model_name: "%s"
    model_version: -1
    input_map { key: "images" value: "flipped" }
    output_map { key: "logits" value: "scores" }
  }
}
"""
