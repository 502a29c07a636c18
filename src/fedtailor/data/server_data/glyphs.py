"""Characters as ink: from the strokes of built-in styles, from font files, from installed families."""

import os
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from fedtailor.data.readers.files import translate_read_errors
from fedtailor.errors import InputError, import_extra, require

GlyphRenderer = Callable[[str, int, float], Any]
"""(character, pixels of an em, pixels of the pen) -> a gray Pillow image, white where ink is, cropped to it."""

STYLES = (
    *(
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
    ),
    *("futural", "futuram", "gothiceng", "gothicger", "gothicita"),
)
UNITS_PER_EM = 30  # of an em: capitals of these styles are 21 units high, and 0.7 em is usual
FONT_SUFFIXES = (".ttf", ".otf", ".ttc")
PLAIN_STYLES = ("regular", "book", "roman", "normal", "medium")
MISSING_CHARACTER = "\U0010ffff"  # no font has this character, so it shows what a font draws for those that it lacks


def get_glyph_renderer(font: str) -> GlyphRenderer:
    """How a built-in style, a font file or an installed family ("Family" or "Family Style") draws characters."""
    if font in STYLES:
        return partial(_draw_strokes, font)
    return partial(
        _draw_outline,
        font,
        _find_font_file(font)
        if font.lower().endswith(FONT_SUFFIXES)
        else _find_installed_font(font),
    )


def import_pillow(part: str) -> Any:
    """A module of Pillow, or a sentence that says how to get it."""
    return import_extra(f"PIL.{part}", "render", "Rendering characters")


def _draw_strokes(style: str, character: str, em: int, pen: float) -> Any:
    """A character drawn with a round pen."""
    glyphs, scale, middle = _load_glyphs(style), em / UNITS_PER_EM, 2 * em
    require(
        character in glyphs,
        f"rendered: the style {style} has no character {character!r}; name another font.",
    )
    image = import_pillow("Image").new("L", (4 * em, 4 * em))
    draw, radius = import_pillow("ImageDraw").Draw(image), (pen - 1) / 2  # Pillow paints both ends
    for stroke in glyphs[character].strokes:
        points = [(middle + scale * x, middle + scale * y) for x, y in stroke]
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
    """A character of a font file, in the font's own weight."""
    fonts = import_pillow("ImageFont")
    with translate_read_errors(path, "a font"):
        opened = fonts.truetype(str(path), em, layout_engine=fonts.Layout.BASIC)
        left, top, right, bottom = opened.getbbox(character)
        lacking = bytes(opened.getmask(character)) == bytes(opened.getmask(MISSING_CHARACTER))
    require(
        not lacking, f"rendered: the font {font} has no character {character!r}; name another font."
    )
    image = import_pillow("Image").new("L", (max(1, right - left), max(1, bottom - top)))
    import_pillow("ImageDraw").Draw(image).text((-left, -top), character, 255, opened)
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
    """The file of an installed family: of this name and no other, in its plain style unless another is named."""
    wanted, found = font.casefold(), dict[str, Path]()
    for family, style, path in _list_families(tuple(_list_font_folders())):
        if wanted in (family, f"{family} {style}"):
            found.setdefault(style, path)
    if not found:
        others = f"a .ttf or .otf file, another installed family, or one of the styles {', '.join(STYLES)}"
        raise InputError(f"rendered: no font {font!r} is installed; install it, or name {others}.")
    return next((found[style] for style in PLAIN_STYLES if style in found), found[min(found)])


@lru_cache(maxsize=1)
def _list_families(folders: tuple[Path, ...]) -> list[tuple[str, str, Path]]:
    """Family, style and file of every font below some folders; what cannot be opened is nobody's font."""
    fonts, found = import_pillow("ImageFont"), []
    for path in (
        path
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in FONT_SUFFIXES
    ):
        try:
            family, style = fonts.truetype(str(path), 10).getname()
        except OSError:
            continue
        found.append(((family or "").casefold(), (style or "").casefold(), path))
    return found


def _list_font_folders() -> Iterable[Path]:
    """Where systems keep fonts: Linux and other Unixes, macOS, Windows."""
    home, env = Path.home(), os.environ.get
    shared = (env("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(":")
    unix = [
        home / ".fonts",
        *(
            Path(data) / "fonts"
            for data in (env("XDG_DATA_HOME") or home / ".local/share", *shared)
        ),
    ]
    mac = [home / "Library/Fonts", Path("/Library/Fonts"), Path("/System/Library/Fonts")]
    roots = {"WINDIR": "Fonts", "LOCALAPPDATA": "Microsoft/Windows/Fonts"}
    windows = [
        Path(os.environ[root]) / below for root, below in roots.items() if root in os.environ
    ]
    return [path for path in (*unix, *mac, *windows) if path.is_dir()]
