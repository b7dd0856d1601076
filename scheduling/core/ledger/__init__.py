"""What is recorded of a request, and what is made of the record: SLO, cost and trace."""
