"""Work in a process of its own: TensorRT may abort, hold memory, or have to be cancelled."""
