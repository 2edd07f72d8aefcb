"""What refold is operated with: the command line, the bench, the demo."""
