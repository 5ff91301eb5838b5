"""What data sets look like on disk: class folders, COCO JSON, Pascal VOC, YOLO, and the published sets ImageNet and COCO 2017.

A file here reads one format, or recognises one set, and yields a listing or `Annotations`; it refuses whatever contradicts
itself, with the file and the next step. No photo is decoded and nothing is written here: that is the pipeline, one
room up. Photos in tar, zip and records: prepare/containers.
"""
