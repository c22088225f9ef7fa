"""A shop that pays orders and mails receipts. Run the demo: make demo"""
