"""The tensor that users hold, the storage behind it, its views and annotations."""
