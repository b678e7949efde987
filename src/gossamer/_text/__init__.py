"""Names with "did you mean", numbers with units, text tables, progress bars."""
