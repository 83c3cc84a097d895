"""Compiling, measuring and versioning the program."""
