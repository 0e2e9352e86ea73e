"""Pages and charts as plain text: HTML and SVG that load nothing and run nothing."""
