"""A bundle: the folder that holds an engine and its metadata."""
