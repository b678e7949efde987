"""Reports: run folders -> one self-contained HTML file."""

from gossamer.lab.report.page import write_comparison, write_report, write_sweep

__all__ = ["write_comparison", "write_report", "write_sweep"]
