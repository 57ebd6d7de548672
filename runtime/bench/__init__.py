"""`python -m runtime bench`: what a decode step costs, against its memory floor and against plain torch."""
