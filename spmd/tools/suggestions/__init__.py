"""`suggest`: shardings of a model, compared by the compiler."""
