"""The bytes of journals: records, notes and file names. No I/O."""
