"""Which files, records and items there are to read, and in which parts, found out without Spark."""
