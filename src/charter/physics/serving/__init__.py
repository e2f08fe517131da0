"""Seconds and dollars of generated text: prefill, decode, engines, answer lengths, judges behind an API."""
