"""Watching a training that costs money: does it get on, does it still make sense, is there money left.

`tail` follows its log, `power` asks its GPUs, `signs` are the rules (pure: a look in, findings out), `meter` counts
the money, `look` puts them together, `act` stops the training and the machine.
"""
