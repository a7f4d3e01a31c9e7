"""Training that is killed again and again: the programs, the killing, and what must hold afterwards."""
