"""Where journals are, in the file system or in a store, and what is in their files."""
