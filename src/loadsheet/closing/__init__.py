"""A signed sheet and its end: what was predicted beside what was measured."""
