"""Which of several replicas gets a request."""
