"""Networks and posteriors in files: to load again, or as ONNX and ``torch.export``."""
