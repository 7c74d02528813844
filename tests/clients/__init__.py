"""The real projects that a front stands in for, run on it: `make clients` with checkouts of them."""
