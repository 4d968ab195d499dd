"""OpenTelemetry spans of calls and of their requests' phases."""
