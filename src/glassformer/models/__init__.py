"""Models: stacks of blocks put together."""
