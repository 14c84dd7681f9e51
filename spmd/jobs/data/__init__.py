"""Batches for the device: a loader that uploads ahead of the step, and documents packed to rows."""

from .loader import DataLoader as DataLoader
from .packing import PackedDocuments as PackedDocuments
