"""Hooks of mkdocs: pages of the repository outside docs/, and reference pages that follow from the code."""

from pathlib import Path

from message_pages import messages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from module_pages import modules_of
from navigation import expand
from openapi_page import endpoints
from option_pages import options_of
from repository_links import other_pages, pictures, rewrite_links

ROOT = Path(__file__).parents[2]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expand the patterns of the navigation."""
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    config.nav = expand(config.nav or [], [*pages, *other_pages(ROOT)])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures outside docs/ that belong to the site."""
    for uri, path in {**other_pages(ROOT), **pictures(ROOT)}.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the generated parts of a page, and let its links point to pages of the site."""
    uri = page.file.src_uri
    path = other_pages(ROOT).get(uri, ROOT / "docs" / uri)
    return rewrite_links(messages(modules_of(endpoints(options_of(markdown)))), path.relative_to(ROOT).as_posix(), uri)
