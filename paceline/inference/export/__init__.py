"""Export of a trained model in the formats that `formats.py` lists, each compared with the model before the file stays."""
