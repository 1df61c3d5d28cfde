"""What all reports share: the same sections, words and numbers, whatever the file format."""
