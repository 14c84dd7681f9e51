"""Programs of many lengths: dims that are marked or learned are held padded, and their lengths are
operands."""
