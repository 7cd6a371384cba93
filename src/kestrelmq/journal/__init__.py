"""The append-only files of a queue: record format, file names, writing, reading and replay."""
