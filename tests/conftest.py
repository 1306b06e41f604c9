"""What every folder of tests may ask for by name."""

pytest_plugins = ["tests.support.kafka", "tests.support.postgres"]
