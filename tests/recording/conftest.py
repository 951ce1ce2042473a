"""Shows the values in failed assertions of the shared tests, as pytest does for the test modules."""

import pytest

pytest.register_assert_rewrite("tests.recording.sinks.store_conformance")
