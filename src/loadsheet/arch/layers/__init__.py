"""Compositions of ops that read like the PyTorch modules they stand for."""
