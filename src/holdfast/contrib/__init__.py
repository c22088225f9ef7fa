"""Transports to brokers, a module each. Each needs the extra of its name: pip install 'holdfast[nats]'."""
