"""The file system: how files look without reading them, what can be trusted about that, and how to open them safely."""
