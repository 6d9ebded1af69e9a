"""denserk: dense passage retrieval from text to measures."""

__version__ = "0.1.0"
