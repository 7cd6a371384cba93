"""What a run says: medians, tables, JSON and the picture in the documentation."""
