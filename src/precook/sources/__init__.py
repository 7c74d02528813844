"""What exists: folders and tables, captions and masks, stamps, and how pictures are cut."""
