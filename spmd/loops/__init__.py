"""Control flow: functions recorded once, as the bodies of loops and branches."""
