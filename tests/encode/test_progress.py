"""Progress: when what was encoded is made durable."""

from __future__ import annotations

from precook.encode.progress import FlushPolicy


class TestFlushPolicy:
    """When what was encoded is made durable."""

    def test_costly_batches_are_made_durable_soon(self) -> None:
        """The first twenty one by one, and later never more than one batch in twenty is at policy."""
        policy, durable = FlushPolicy(), 0
        for batch in range(1, 401):
            if policy.is_due(0.01):
                durable = batch
            assert batch - durable <= batch // 20
        assert durable >= 380

    def test_nobody_waits_for_what_costs_nothing(self) -> None:
        """Not even when other threads hold up most of its batches."""
        policy = FlushPolicy()
        assert not any(policy.is_due(0.02 if batch % 5 else 0.000002) for batch in range(100))

    def test_an_encoder_that_becomes_slow_is_noticed(self) -> None:
        """Batches that all take long are costly, whatever those before them were."""
        policy = FlushPolicy()
        assert not any(policy.is_due(0.000002) for _ in range(10))
        assert any(policy.is_due(0.01) for _ in range(10))
