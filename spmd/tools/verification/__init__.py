"""`verify`: a step on one device against the same step on meshes, with tolerances from its rounding
errors."""

from .evidence import Verification as Verification
from .verifier import verify as verify
