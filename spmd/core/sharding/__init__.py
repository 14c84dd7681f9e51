"""The sharding of an array: the value, its texts, its constraint in a program."""
