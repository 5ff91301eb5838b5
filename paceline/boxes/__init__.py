"""Pure tensor geometry of boxes: no parameters, no files. Imports torch and nothing else of paceline."""
