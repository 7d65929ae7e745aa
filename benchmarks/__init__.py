"""Glassformer beside its peers: `python -m benchmarks.run QUESTION` from the root of a clone."""
