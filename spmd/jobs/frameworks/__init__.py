"""The device xla as accelerate, transformers and what is built on them choose it: off until `use()`
is called."""

from .choice import use as use
