"""Renders pages and charts as plain HTML and SVG, which load nothing and run nothing."""
