"""Stands for a heavy package."""
