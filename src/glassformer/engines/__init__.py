"""What computes for a translator: PyTorch's module, or the native engine, behind one interface."""
