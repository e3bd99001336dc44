"""The site builds without a warning, and its pages fetch nothing from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_site_builds_and_fetches_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = sorted(tmp_path.glob("*.html"))
    assert len(pages) >= 5
    for page in pages:
        text = page.read_text()
        fetched = re.findall(r"<(?:script|img|iframe)[^>]* src=\"?([^\"> ]+)", text)
        fetched += re.findall(r"<link[^>]* href=\"?([^\"> ]+)", text)
        assert fetched
        assert not [url for url in fetched if "//" in url], page.name
