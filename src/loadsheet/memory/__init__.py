"""Accounts of memory: every instant of a training step, of prefill and of decode."""

from loadsheet.memory.serving import kv_bytes_per_token, serving_memory
from loadsheet.memory.terms import Instant, MemoryAccount
from loadsheet.memory.training import training_memory

__all__ = ["Instant", "MemoryAccount", "kv_bytes_per_token", "serving_memory", "training_memory"]
