"""Statistics of tensors, from the bits as they are stored."""

from __future__ import annotations

import numpy as np
import pytest

from precook.cli.tree import statistics, tree_document, tree_lines
from precook.store.dtypes import DTYPES


class TestNumbers:
    """Statistics, from the bits as they are stored."""

    @pytest.mark.parametrize("name", [name for name, dtype in DTYPES.items() if dtype.foreign and dtype.lanes == 1])
    def test_foreign_floats_are_decoded_without_their_library(self, name: str) -> None:
        """Every pattern of every small float type has the value that ml_dtypes gives it."""
        ml_dtypes = pytest.importorskip("ml_dtypes")
        dtype = DTYPES[name]
        bits = np.arange(1 << (8 * dtype.size), dtype=dtype.bits)
        with np.errstate(invalid="ignore"):
            values = bits.view(getattr(ml_dtypes, dtype.numpy)).astype(np.float64)
        for low in range(0, bits.size, max(bits.size // 256, 1)):
            part = slice(low, low + max(bits.size // 256, 1))
            finite = values[part][np.isfinite(values[part])]
            found = statistics(bits[part], dtype)
            assert found.nan == np.isnan(values[part]).sum()
            assert found.inf == np.isinf(values[part]).sum()
            assert found.min == (finite.min() if finite.size else None)
            assert found.max == (finite.max() if finite.size else None)
            assert found.mean == (pytest.approx(finite.mean()) if finite.size else None)

    def test_packed_fours_are_unpacked(self) -> None:
        """One byte holds two numbers."""
        found = statistics(np.array([0x7F, 0x00], np.uint8), DTYPES["F4"])
        assert (found.min, found.max, found.mean) == (-6.0, 6.0, 0.0)

    def test_large_integers_keep_their_ends(self) -> None:
        """The ends of 64-bit integers are exact, though the mean is a float."""
        ends = np.array([-(2**63), 2**63 - 1], np.int64)
        found = statistics(ends, DTYPES["I64"])
        assert (found.min, found.max) == (-(2**63), 2**63 - 1)
        assert statistics(np.array([2**64 - 1], np.uint64), DTYPES["U64"]).max == 2**64 - 1

    def test_many_elements_are_measured_in_parts(self) -> None:
        """Mean and deviation over several chunks are those of the whole."""
        values = np.random.default_rng(0).normal(1e4, 1, 3_000_001).astype(np.float32)
        found = statistics(values, DTYPES["F32"])
        assert found.mean == pytest.approx(values.mean(dtype=np.float64), rel=1e-12)
        assert found.std == pytest.approx(values.std(dtype=np.float64), rel=1e-9)

    def test_nothing_and_too_much_have_no_mean(self) -> None:
        """Empty tensors and sums beyond float64 give None, which JSON can hold."""
        assert statistics(np.zeros((0, 3)), DTYPES["F64"]).mean is None
        assert statistics(np.zeros((0, 3), np.int8), DTYPES["I8"]).mean is None
        huge = statistics(np.full(9, 1e308), DTYPES["F64"])
        assert (huge.max, huge.mean, huge.std) == (1e308, None, None)

    def test_complex_numbers_are_measured_by_magnitude(self) -> None:
        """|3 + 4i| is 5."""
        found = statistics(np.array([3 + 4j], np.complex64), DTYPES["C64"])
        assert (found.min, found.magnitudes) == (5.0, True)


class TestSets:
    """Values that JSON does not have."""

    def test_a_set_is_shown_with_its_members_in_order(self) -> None:
        """Short ones on one line, long ones as so many members, in JSON all of them."""
        assert "{1, 2}" in str(list(tree_lines({"tags": {2, 1}})))
        assert "set of 100" in str(list(tree_lines({"tags": set(range(100))})))
        document = tree_document(frozenset({"b", "a"}))
        members = [{"type": "str", "value": "a"}, {"type": "str", "value": "b"}]
        assert document == {"type": "frozenset", "items": members}
