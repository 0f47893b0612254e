"""Writes axe-core, which is one JavaScript file of the package."""
import sys, zipfile

sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read("axe_playwright_python/axe.min.js"))
