"""Pages as HTML: one self-contained file (:mod:`.html_file`).

The text of a page comes from a trace and is data: Jinja2 escapes it in the templates, and the
data of the pictures is JSON that the page's own scripts read and never insert as markup.
"""
