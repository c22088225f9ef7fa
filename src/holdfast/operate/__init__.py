"""What operators see and do, each verb once. The command line only renders it.

overview    how things stand: queues, workers, dead letters, throughput, the server
queues      the queues and what they hold
jobs        list jobs, show one
dead        list dead letters, put them back to work
workers     who runs what
"""
