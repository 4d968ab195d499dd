"""Where keys, values and states lie on the device, and how their bytes move."""
