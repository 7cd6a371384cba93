"""The load tests: each moves items through one server and accounts for every one of them.

`items` makes the items and checks that each arrived, `connections` is the interface of connections
in the three protocols, `workers` uses many of them at once, and each test is a module with its
options and `run`.
"""
