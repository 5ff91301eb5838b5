"""Exported graphs (ONNX, OpenVINO, torch.export) as predictors: opened, run and scored."""
