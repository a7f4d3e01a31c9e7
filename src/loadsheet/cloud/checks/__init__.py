"""The checks, a module for each part of the list; every module in this folder is found by itself."""
