// Names at the ends of curves, instead of a legend.
'use strict';
const GLYPHS = ['\u25cf', '\u25a0', '\u25c6', '\u25b2', '\u25bc', '\u271a'];  // as MARKS
const LINE_HEIGHT = 18;
const LETTER_WIDTH = 7.1;
const MIN_WIDTH_FOR_NAMES = 620;

// Places from 0, the bottom, to 1 near the targets, which rise, that are at least `gap` apart if
// there is room for all.
function separate(targets, gap) {
  const step = Math.min(gap, 1 / Math.max(1, targets.length - 1));
  const places = [];
  for (const target of targets) {
    const lowest = places.length ? places.at(-1) + step : 0;
    places.push(Math.max(target, lowest));
  }
  let top = 1;
  for (let index = places.length - 1; index >= 0; index -= 1) {
    places[index] = Math.min(places[index], top);
    top = places[index] - step;
  }
  return places;
}

// Ends are {index, name, value, x, y}, with x and y from 0 to 1 inside the axes. Narrow charts and
// single lines have no names.
function placeNames(ends, {width, height}) {
  if (width < MIN_WIDTH_FOR_NAMES || ends.length < 2) {
    return {hasNames: false, right: 16, annotations: [], shapes: []};
  }
  const texts = ends.map(({name, value}) => `${shorten(name)} ${value}`);
  const right = 44 + LETTER_WIDTH * Math.max(...texts.map(text => text.length));
  const plotWidth = width - right - 56;
  const order = ends.map((_, index) => index).sort((a, b) => ends[a].y - ends[b].y);
  const heights = separate(order.map(index => ends[index].y), LINE_HEIGHT / (height - 60));
  const annotations = [];
  const shapes = [];
  for (const [rank, index] of order.entries()) {
    const end = ends[index];
    const {color, turn} = getStyle(end.index);
    const glyph = GLYPHS[turn % GLYPHS.length];
    annotations.push({
      xref: 'paper',
      x: 1,
      xshift: 16,
      xanchor: 'left',
      yref: 'paper',
      y: heights[rank],
      yanchor: 'middle',
      showarrow: false,
      align: 'left',
      text: `<span style="color:${color}">${glyph}</span> ${texts[index]}`,
    });
    shapes.push({
      type: 'line',
      xref: 'paper',
      x0: end.x,
      x1: 1 + 14 / plotWidth,
      yref: 'paper',
      y0: end.y,
      y1: heights[rank],
      line: {color, width: 1, dash: 'dot'},
    });
  }
  return {hasNames: true, right, annotations, shapes};
}
