"""One training and its folder; comparisons and sweeps of many."""
