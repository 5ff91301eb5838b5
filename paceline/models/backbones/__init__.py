"""Backbones: ResNet and ResNeXt, any network of timm's, and the feature pyramid."""
