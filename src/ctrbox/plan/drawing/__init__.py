"""Shows a plan as a picture, as text and as data."""
