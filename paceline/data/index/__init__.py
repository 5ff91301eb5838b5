"""The index of a prepared data set: its manifest, where each photo lies, and whether the files still match."""
