"""From one aten call to one recorded op."""
