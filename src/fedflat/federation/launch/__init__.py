"""A whole federation on one machine, to try a study out: certificates, processes, and their end."""
