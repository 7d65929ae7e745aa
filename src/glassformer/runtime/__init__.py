"""The native engine: a model packed once, and decoded without PyTorch."""
