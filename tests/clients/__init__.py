"""The real projects that a front stands in for or a feed trains, run on it: `make clients` with checkouts of them."""
