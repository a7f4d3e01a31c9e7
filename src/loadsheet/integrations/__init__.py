"""Loadsheet inside other trainers: callbacks that log into a run directory and record what was measured."""
