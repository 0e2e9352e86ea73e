"""A plan as a picture, as text and as a page."""
