"""The processes of a job, watched: they do the same, and their programs end."""
