"""What data sets look like on disk: class folders, COCO JSON, Pascal VOC, YOLO, and the published sets ImageNet and COCO 2017.

A file here reads one format, or recognizes one set, and yields a listing or `Annotations`; it refuses contradictions, with the
file and the next step. It decodes no photo and writes nothing: that is prepare/pipeline.py. Photos in tar, zip and
records: containers/.
"""
