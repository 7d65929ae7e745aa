"""The fast path: a model packed for inference and run without PyTorch. Import its modules; they load little."""
