"""What a model is: ops, tape, layers, families and the readers that turn files into models."""
