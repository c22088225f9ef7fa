"""How an application enqueues in its own transaction, one file per framework. The README quotes the marked lines."""
