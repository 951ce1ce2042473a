"""Several worker processes on one data port, and the supervisor that starts and watches them."""
