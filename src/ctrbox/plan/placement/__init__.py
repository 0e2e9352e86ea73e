"""Where each operator runs: sizes, costs, devices and the operators that share a kernel."""
