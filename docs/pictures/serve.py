"""Take docs/pictures/serve.png of a running server: `python docs/pictures/serve.py ADDRESS [FILE]`.

The picture is of SciFact: `denserk index --type bm25 --corpus SCIFACT --output scifact`, then
`denserk serve --index scifact`. It needs playwright and Chromium.
"""

import shutil
import sys
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

QUERY = "does vitamin D protect against infection"
SIZE = {"width": 900, "height": 720}


def main(address: str, output: str) -> None:
    """Search and take the picture."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        tab = browser.new_page(viewport=SIZE, color_scheme="light")
        tab.goto(f"{address}/?{urlencode({'q': QUERY})}")
        tab.screenshot(path=output)
        browser.close()


if __name__ == "__main__":
    default_output = Path(__file__).with_name("serve.png")
    main(sys.argv[1].rstrip("/"), sys.argv[2] if len(sys.argv) > 2 else str(default_output))
