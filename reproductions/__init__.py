"""Tables and figures of papers, measured again: one file each, see ``frame``. Not installed."""
