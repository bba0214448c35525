"""Sphinx's settings: `make docs` builds the site into build/docs."""

from sinkinterp import __version__

project = "sinkinterp"
author = "The sinkinterp developers"
release = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"sinkinterp {release}"
exclude_patterns = ["notes"]
suppress_warnings = ["myst.header"]  # included pages begin at their own level

nb_execution_mode = "off"  # the notebooks hold their output; the tests run them
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_preserve_defaults = True
autosummary_generate = True
