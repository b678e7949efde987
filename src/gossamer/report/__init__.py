"""Run folders -> one HTML file that needs nothing else: no network, no other file."""

from gossamer.report.page import write_report

__all__ = ["write_report"]
