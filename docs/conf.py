"""The documentation as a site: `sphinx-build docs build/site`, then open build/site/index.html."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from denserk import __version__

project = "denserk"
release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_pages",  # beside this file
]
smartquotes = False  # -- is how an option begins
myst_heading_anchors = 4  # as repositories show them

# The Python API
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_custom_sections = [("Options", "params_style")]
maximum_signature_line_length = 70

html_theme = "furo"
html_title = f"denserk {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
