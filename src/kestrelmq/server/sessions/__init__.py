"""A session for each protocol: it parses requests, has them served, and formats the replies."""
