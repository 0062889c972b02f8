"""A package, so that test_run may be the name of two files."""
