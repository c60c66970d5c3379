"""Model sources: files, installed packages, PyTorch modules, Hugging Face folders."""
