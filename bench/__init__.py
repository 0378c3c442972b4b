"""Benchmarks of the broker beside redis-server and beanstalkd. See README.md in this directory."""
