"""The load tests: each moves items through one server and accounts for every one of them.

`items` makes the items and checks that each arrived, `links` has connections in the three
protocols, `crew` uses many of them at once, and each test is a module with its options and `run`.
"""
