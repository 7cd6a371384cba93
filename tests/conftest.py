"""How random tests draw their examples."""

from hypothesis import HealthCheck, settings

# A run of the suite says the same each time, on every machine; `make soak` draws new examples.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "soak", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")
