"""Programs as they come, without marks: loops without a sync, graphs that change, large logits."""

from . import joined as joined
