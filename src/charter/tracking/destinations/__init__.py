"""Trackers that a run is sent to: MLflow, Weights & Biases, TensorBoard, Prometheus."""
