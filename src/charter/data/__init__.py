"""Rows of data sets: formats, reading, checking, conversion; pure but for the files that are read."""
