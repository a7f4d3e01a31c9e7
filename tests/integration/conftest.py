"""Programs among the checks, which nobody is to import."""

collect_ignore = ["check_parsers.py", "train.py"]
