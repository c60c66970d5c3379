"""A bundle: the folder that holds an engine and all that is known of it."""
