"""Tables for terminals, HTML pages and SVG figures, made from records and data sets."""
