"""What is known of nodes and replicas right now: reports, the record and Git laid over each other."""
