"""The guarded call: one core without I/O, a driver for threads and one for event loops."""
