"""Which records live beyond the device, and when they travel: decides, and moves nothing."""
