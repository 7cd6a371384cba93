"""The load tests: each moves items through one server, and accounts for every one of them.

`items` makes items and tells where each went, `links` are connections in the three protocols,
`crew` runs many of them at once, and a module for each test has its options and its `run`.
"""
