"""How an array lies: the value, its spellings, its constraint."""
