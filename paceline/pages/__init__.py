"""What people look at: report.html, check.html, photos with boxes, masks and names.

Here: templates, charts, tiles, drawing. Not here: what they show is measured elsewhere (log/, tasks/metrics/, datasets/).
"""
