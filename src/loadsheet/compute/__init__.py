"""FLOPs, step time, prefill and decode."""
