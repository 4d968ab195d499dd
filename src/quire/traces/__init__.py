"""What happened when, for tools that show time: OpenTelemetry spans and Perfetto files."""
