"""Where models come from: files, installed packages, PyTorch modules, Hugging Face folders."""
