"""The format on disk, pure: headers and packs to bytes and back, as docs/reference/format.md says it."""
