"""From expressions to a DAG of operators in layers, each with a place. Runs nothing and needs no device."""
