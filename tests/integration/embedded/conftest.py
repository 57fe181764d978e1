from tests.fixtures_embedded import *  # noqa: F403
