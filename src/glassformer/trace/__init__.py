"""Recording what happens inside a model."""
