"""Dispatch: from one aten call to one recorded op."""
