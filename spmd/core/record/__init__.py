"""The tensor that users hold, the storage behind it, its views and annotations, and how an aten call becomes an op."""
