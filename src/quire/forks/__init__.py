"""Forks: requests that continue a running or recent request from one of its tokens."""
