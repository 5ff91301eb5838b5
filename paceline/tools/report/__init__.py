"""What people look at: report.html, check.html.

Here: templates, charts, tiles. Photos are drawn in inference/drawing; the pages measure nothing themselves.
"""
