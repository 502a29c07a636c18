"""Characters as images of ink: from the strokes of built-in styles, or from fonts."""

import os
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from fedtailor.data.readers.files import translate_read_errors
from fedtailor.errors import InputError, import_extra, require

GlyphRenderer = Callable[[str, int, float], Any]
"""(character, pixels of an em, pixels of the pen) -> gray Pillow image, cropped, ink in white."""

STYLES = (
    "cursive",
    "scripts",
    "scriptc",
    "timesi",
    "timesib",
    "timesr",
    "timesrb",
    "rowmans",
    "rowmand",
    "rowmant",
    "futural",
    "futuram",
    "gothiceng",
    "gothicger",
    "gothicita",
)
"""Built-in styles: Hershey fonts, whose characters are strokes."""

UNITS_PER_EM = 30
"""Units of these styles in an em: capitals are 21 units high, usually 0.7 em."""

FONT_SUFFIXES = (".ttf", ".otf", ".ttc")

PLAIN_STYLES = ("regular", "book", "roman", "normal", "medium")
"""Styles of an installed family to use if none is named, the first that there is."""

MISSING_CHARACTER = "\U0010ffff"
"""A character that no font has: it shows what a font draws for those that it lacks."""


def get_glyph_renderer(font: str) -> GlyphRenderer:
    """Return the renderer of a font.

    `font` is a built-in style, a font file, or an installed family ("Family" or "Family Style").
    """
    if font in STYLES:
        return partial(_draw_strokes, font)
    if font.lower().endswith(FONT_SUFFIXES):
        return partial(_draw_outline, font, _find_font_file(font))
    return partial(_draw_outline, font, _find_installed_font(font))


def import_pillow(part: str) -> Any:
    """Return a module of Pillow, or raise `InputError` with how to install it."""
    return import_extra(f"PIL.{part}", "render", "Rendering characters")


def _draw_strokes(style: str, character: str, em: int, pen: float) -> Any:
    """Return a character of a built-in style, drawn with a round pen."""
    glyphs = _load_glyphs(style)
    require(
        character in glyphs,
        f"rendered: the style {style} has no character {character!r}; name another font.",
    )
    scale = em / UNITS_PER_EM
    center = 2 * em
    radius = (pen - 1) / 2  # Pillow paints the pixels at both ends
    image = import_pillow("Image").new("L", (4 * em, 4 * em))
    draw = import_pillow("ImageDraw").Draw(image)
    for stroke in glyphs[character].strokes:
        points = [(center + scale * x, center + scale * y) for x, y in stroke]
        draw.line(points, 255, round(pen))
        for x, y in points:
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), 255)
    return _crop_to_ink(style, character, image)


@lru_cache(maxsize=len(STYLES))
def _load_glyphs(style: str) -> dict[str, Any]:
    fonts = import_extra("HersheyFonts", "render", f"The style {style}").HersheyFonts()
    fonts.load_default_font(style)
    return dict(fonts.all_glyphs)


def _draw_outline(font: str, path: Path, character: str, em: int, _pen: float) -> Any:
    """Return a character of a font file, in the font's own weight."""
    fonts = import_pillow("ImageFont")
    with translate_read_errors(path, "a font"):
        typeface = fonts.truetype(str(path), em, layout_engine=fonts.Layout.BASIC)
        left, top, right, bottom = typeface.getbbox(character)
        pixels = bytes(typeface.getmask(character))
        missing_pixels = bytes(typeface.getmask(MISSING_CHARACTER))
    require(
        pixels != missing_pixels,
        f"rendered: the font {font} has no character {character!r}; name another font.",
    )
    image = import_pillow("Image").new("L", (max(1, right - left), max(1, bottom - top)))
    import_pillow("ImageDraw").Draw(image).text((-left, -top), character, 255, typeface)
    return _crop_to_ink(font, character, image)


def _crop_to_ink(font: str, character: str, image: Any) -> Any:
    box = image.getbbox()
    require(
        box is not None, f"rendered: the character {character!r} leaves no ink in the font {font}."
    )
    return image.crop(box)


def _find_font_file(font: str) -> Path:
    path = Path(font).expanduser()
    require(path.is_file(), f"rendered: there is no font file '{font}'.")
    return path


def _find_installed_font(font: str) -> Path:
    """Return the file of an installed family of this name, in the plain style unless one is named.

    No other family is used in place of one that is not installed.
    """
    name = font.casefold()
    path_by_style: dict[str, Path] = {}
    for family, style, path in _list_families(tuple(_list_font_folders())):
        if name in (family, f"{family} {style}"):
            path_by_style.setdefault(style, path)
    if not path_by_style:
        raise InputError(
            f"rendered: no font {font!r} is installed; install it, or name a .ttf or .otf file, "
            f"another installed family, or one of the styles {', '.join(STYLES)}."
        )
    for style in PLAIN_STYLES:
        if style in path_by_style:
            return path_by_style[style]
    return path_by_style[min(path_by_style)]


@lru_cache(maxsize=1)
def _list_families(folders: tuple[Path, ...]) -> list[tuple[str, str, Path]]:
    """Return family, style and file of every font below some folders that can be opened."""
    fonts = import_pillow("ImageFont")
    families = []
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix.lower() not in FONT_SUFFIXES:
                continue
            try:
                family, style = fonts.truetype(str(path), 10).getname()
            except OSError:
                continue
            families.append(((family or "").casefold(), (style or "").casefold(), path))
    return families


def _list_font_folders() -> list[Path]:
    """Return the existing folders of fonts on Linux and other Unixes, macOS and Windows."""
    home = Path.home()
    data_home = os.environ.get("XDG_DATA_HOME") or home / ".local/share"
    data_dirs = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    folders = [home / ".fonts", Path(data_home) / "fonts"]
    folders += [Path(data_dir) / "fonts" for data_dir in data_dirs.split(":")]
    folders += [home / "Library/Fonts", Path("/Library/Fonts"), Path("/System/Library/Fonts")]
    if "WINDIR" in os.environ:
        folders.append(Path(os.environ["WINDIR"]) / "Fonts")
    if "LOCALAPPDATA" in os.environ:
        folders.append(Path(os.environ["LOCALAPPDATA"]) / "Microsoft/Windows/Fonts")
    return [folder for folder in folders if folder.is_dir()]
