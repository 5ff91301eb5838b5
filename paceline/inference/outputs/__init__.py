"""The files that predictions are written to: their folder, COCO results, and formats of label tools."""
