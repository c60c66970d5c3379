"""Language models: transformers' modules become ModelOpt's checkpoint. `job.py` leads through the folder."""
