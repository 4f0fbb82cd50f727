"""Run brokers, browsers, monitoring and the program itself."""
