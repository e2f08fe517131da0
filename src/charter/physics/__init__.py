"""Needs of one configuration: parameters, flops, bytes, seconds."""
