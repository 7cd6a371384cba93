"""Reports of benchmark runs: medians, tables, JSON, and the picture in the documentation."""
