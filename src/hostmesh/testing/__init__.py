"""Multi-process tests on one machine."""
