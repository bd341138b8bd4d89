"""Colours and fonts of the page's own controls; the rest is in page.css."""

from __future__ import annotations

from gradio.themes import Base
from gradio.themes.utils import colors, sizes

# Names of fonts that systems have: a name of another kind would be fetched.
_SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
_MONO = ("ui-monospace", "Menlo", "Consolas", "monospace")

THEME = Base(
    primary_hue=colors.blue,
    neutral_hue=colors.slate,
    radius_size=sizes.radius_md,
    text_size=sizes.text_md,
    font=_SANS,
    font_mono=_MONO,
).set(
    body_background_fill="#f7f8fa",
    body_background_fill_dark="#11151b",
    block_background_fill="transparent",
    block_background_fill_dark="transparent",
    block_border_width="0px",
    block_shadow="none",
    block_padding="0px",
    block_label_background_fill="transparent",
    block_title_text_weight="600",
    block_title_text_size="*text_sm",
    input_background_fill="#ffffff",
    input_background_fill_dark="#1a2029",
    input_border_width="1px",
    input_border_color="#9aa5b4",
    input_border_color_dark="#5a6675",
    input_shadow="none",
    button_primary_background_fill="#1d5fbf",
    button_primary_background_fill_hover="#174e9e",
    button_primary_background_fill_dark="#2f74d8",
    button_primary_background_fill_hover_dark="#2766c6",
    button_primary_text_color="#ffffff",
    button_secondary_background_fill="#e6eaf0",
    button_secondary_background_fill_dark="#28313d",
)
