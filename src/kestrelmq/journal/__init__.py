"""Append-only files that hold a queue: their bytes, names, files, writing and replay."""
