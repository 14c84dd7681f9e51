"""What a user holds: the tensor, the cell behind it, its views and annotations."""
