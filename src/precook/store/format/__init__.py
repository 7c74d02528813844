"""The format on disk, pure: headers and packs to bytes and back, as docs/format.md says it."""
