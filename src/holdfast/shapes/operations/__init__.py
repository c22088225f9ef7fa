"""Operations: acts over many that an operator began, carried on by the workers. What they do is in operate/operations.py.

service    takes up what nobody runs, in every worker
measure    what Prometheus reads
checks     what `holdfast doctor` asks
"""
