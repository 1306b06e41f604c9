"""Alibaba's openb GPU cluster trace (2023), and the protocol of the published experiment on it."""
