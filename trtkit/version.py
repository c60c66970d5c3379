"""trtkit's version: a module of its own, which those below the package's door can import."""

__version__ = "0.2.0"
