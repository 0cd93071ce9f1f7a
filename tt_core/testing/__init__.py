"""The kit for plugin authors: fakes, the wrong-backend matrix, and comparisons for tests."""
