"""Pictures of pages: specifications of Vega-Lite for pages, and vl-convert's files of them."""
