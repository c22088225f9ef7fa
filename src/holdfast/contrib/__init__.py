"""What speaks to other systems. Each module needs an extra of its own: `pip install 'holdfast-pg[nats]'`."""
