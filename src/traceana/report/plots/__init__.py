"""The pictures of a page as PNG and SVG files, drawn with matplotlib."""
