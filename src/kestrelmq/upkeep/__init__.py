"""What keeps a queue's journal small: when a file is rotated, rewritten or packed, and how."""
