"""How Sphinx makes the site of these pages: `make site`."""

from kestrelmq.version import VERSION

project = "kestrelmq"
version = release = VERSION
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
# Docstrings have single backticks around code.
default_role = "code"
# Attributes are called `bytes`, too.
suppress_warnings = ["ref.python"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"

html_theme = "furo"
html_title = f"kestrelmq {VERSION}"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]
