"""The bitwise contract: programs that must agree bit for bit."""
