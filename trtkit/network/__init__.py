"""From models to `INetworkDefinition`: ONNX care and parsing, description, cost."""
