"""What tests stand on: the conformance suites, the memory log with its faults, the simulator.

Import what you need from its module, so that nothing is loaded which a test doesn't use:
`refold.testing.log_conformance`, `refold.log.memory`.
"""
