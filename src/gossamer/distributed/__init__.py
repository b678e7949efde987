"""Means over ranks, and one process on one device."""
