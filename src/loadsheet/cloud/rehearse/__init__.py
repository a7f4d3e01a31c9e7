"""The whole pipeline on a small scale, where it costs nothing: train, be told to go, be killed, go on, compare.

Modules: `carry_out` (the stages, in their order), `first` and `second` (the two runs), `stage` (what is
said), `process` (a life of the command, and that nothing of it stays), `scratch` (where it happens, and
what was written elsewhere), `compare` (two runs, bit for bit), `advice` (which lines an unadapted script
lacks), `report` (text and JSON).
"""
