"""Reports: run folders -> one self-contained HTML file."""

from gossamer.lab.report.page import write_comparison, write_report

__all__ = ["write_comparison", "write_report"]
