"""What watches the processes of a job: they do the same, and programs end."""
