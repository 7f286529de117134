"""The page and its server."""

from __future__ import annotations

import os

# before gradio is imported: it would ask about itself on the network
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import gradio as gr

from capsroute.errors import CapsrouteError
from capsroute.explore import markup
from capsroute.explore.gallery import Gallery
from capsroute.explore.pictures import MAX_BYTES
from capsroute.explore.tabs.equivariance import EquivarianceTab
from capsroute.explore.tabs.inspect import InspectTab
from capsroute.explore.tabs.playground import PlaygroundTab
from capsroute.explore.tabs.runs import RunsTab

TABS = ("Playground", "Inspect", "Equivariance", "Runs")


def build(gallery: Gallery) -> gr.Blocks:
    """The whole page."""
    page: gr.Blocks
    with gr.Blocks(title="capsroute explorer", analytics_enabled=False, delete_cache=(3600, 3600)) as page:
        gr.Markdown("# capsroute explorer")
        with gr.Tabs():
            with gr.Tab(TABS[0]):
                PlaygroundTab()
            with gr.Tab(TABS[1]):
                InspectTab(gallery)
            with gr.Tab(TABS[2]):
                EquivarianceTab(gallery)
            with gr.Tab(TABS[3]):
                RunsTab(gallery.runs, page)
    return page


def launch(page: gr.Blocks, host: str, port: int, *, open_browser: bool = False) -> str:
    """Serve the page from a thread and return its address; nothing is asked of any other machine."""
    theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    try:
        _, address, _ = page.launch(
            server_name=host,
            server_port=port,
            prevent_thread_lock=True,
            inbrowser=open_browser,
            share=False,
            quiet=True,
            theme=theme,
            css=markup.CSS,
            footer_links=[],
            # a little above our own limit, so that the page explains
            max_file_size=MAX_BYTES + 2**20,
            ssr_mode=False,
            pwa=False,
            mcp_server=False,
            enable_monitoring=False,
        )
    except OSError as error:
        raise CapsrouteError(
            f"port {port} of {host} cannot be used: it is taken, or not ours; choose another with --port"
        ) from error
    return str(address)
