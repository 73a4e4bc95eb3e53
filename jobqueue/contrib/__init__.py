"""What a project may add to the queue; nothing of it is needed, and nothing else imports it."""
