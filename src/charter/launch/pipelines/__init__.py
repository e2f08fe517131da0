"""The pipeline as one of Kubeflow Pipelines, SageMaker Pipelines or Vertex AI Pipelines: texts only."""
