"""Programs as they come, without marks: loops without a sync, trip counts and graphs that change, large logits."""

from . import joined as joined
