"""Managed services: a stage as a training job of SageMaker, Vertex AI or Azure ML, and a judge as a hosted endpoint.

Texts only: they are rendered and checked against the services' schemas, and people submit them.
"""
