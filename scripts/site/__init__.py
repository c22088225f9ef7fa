"""The documentation as a static site: `make docs-site`. No network, neither to build it nor to read it.

pages      which documents there are, and in which part of the navigation
render     Markdown to HTML, with anchors, and links that lead to pages of the site
reference  pages made from the code and the database: Python, commands, settings, SQL, metrics, errors
build      all of it, with the search index, into a folder
"""
