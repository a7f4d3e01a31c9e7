"""What still costs when the training is over: one list over all regions, read-only; nothing is ever removed."""
