"""From an encoded photo to the pixels of a sample: header, decoding, crops, colors, masks."""
