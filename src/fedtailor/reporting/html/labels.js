// Names at the ends of curves, instead of a legend.
'use strict';
const GLYPHS = ['\u25cf', '\u25a0', '\u25c6', '\u25b2', '\u25bc', '\u271a'];  // as MARKS
const [LINE_HEIGHT, NARROWEST] = [18, 620];

// From 0, the bottom, to 1: as near to where they want to be as they can without touching, if there is room for all.
function movedApart(wanted, gap) {
  const room = Math.min(gap, 1 / Math.max(1, wanted.length - 1)), places = [];
  for (const at of wanted.keys()) places.push(Math.max(wanted[at], at ? places[at - 1] + room : 0));
  for (let at = places.length - 1, top = 1; at >= 0; at -= 1) {
    places[at] = Math.min(places[at], top);
    top = places[at] - room;
  }
  return places;
}

// Ends are {number, name, value, x, y}, with x and y from 0 to 1 inside the axes. In a narrow chart there are no names.
function namesAtEnds(ends, {width, height}) {
  if (width < NARROWEST || ends.length < 2) return {named: false, right: 16, annotations: [], shapes: []};
  const words = ends.map(({name, value}) => `${brief(name)} ${value}`);
  const right = 44 + 7.1 * Math.max(...words.map(each => each.length)), inner = width - right - 56;
  const order = ends.map((_, at) => at).sort((a, b) => ends[a].y - ends[b].y);
  const heights = movedApart(order.map(at => ends[at].y), LINE_HEIGHT / (height - 60));
  const annotations = [], shapes = [];
  for (const [rank, at] of order.entries()) {
    const {number, x, y} = ends[at], {color, turn} = look(number), paper = {xref: 'paper', yref: 'paper'};
    annotations.push({
      ...paper, x: 1, xshift: 16, xanchor: 'left', y: heights[rank], yanchor: 'middle', showarrow: false, align: 'left',
      text: `<span style="color:${color}">${GLYPHS[turn % GLYPHS.length]}</span> ${words[at]}`,
    });
    shapes.push({
      ...paper, type: 'line', x0: x, y0: y, x1: 1 + 14 / inner, y1: heights[rank],
      line: {color: color, width: 1, dash: 'dot'},
    });
  }
  return {named: true, right, annotations, shapes};
}
