"""Sphinx configuration. There is no intersphinx: the documentation builds without a network."""

from sb3_extra_buffers import __version__

project = "sb3-extra-buffers"
author = "The sb3-extra-buffers developers"
copyright = "the sb3-extra-buffers developers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
autoclass_content = "both"

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_title = f"sb3-extra-buffers {version}"
