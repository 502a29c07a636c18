// Scores against what had been done by then: rounds, bytes sent, work of clients.
'use strict';
const ACROSS = {
  round: () => 'round', mb: name => `${name} sent, down and up together`, flops: name => `${name} of clients`,
  steps: () => 'client steps',
};

function curves(_, size) {
  const [group, stage, figure, x] = ['group', 'stage', 'figure', 'x'].map(name => chosen(`curves-${name}`));
  const scored = shown().flatMap(line => {
    const points = line.curves[group]?.[stage]?.[figure];
    return points ? [{line, points}] : [];
  });
  if (!scored.length) return null;
  const [one, name] = unitOf(x, Math.max(...scored.map(({points}) => points[x].at(-1))));
  const furthest = Math.max(...scored.map(({points}) => points[x].at(-1))) / one || 1;
  const drawn = scored.map(({line, points}) => ({line, stage, ...inUnits(line, points, figure, x, one, furthest)}));
  const scale = scaleOf(drawn.flatMap(({low, high}) => [...low, ...high]), figure);
  const names = namesAtEnds(drawn.map(each => atEnd(each, figure, furthest, scale)), size), byRound = x === 'round';
  const last = drawn.map(({line, middle}) => `${label(line, stage)} ${short(middle.at(-1))}`);
  return {
    data: drawn.flatMap(each => band(each, byRound, size)), legend: !names.named && drawn.length > 1,
    layout: base({
      margin: {l: 56, r: names.right, t: 12, b: 48}, annotations: names.annotations, shapes: names.shapes,
      ...legendBelow(size, drawn.length),
      xaxis: axis(ACROSS[x](name), {
        range: [0, furthest * 1.01], unifiedhovertitle: {text: 'round %{x}'},
        ...(byRound && furthest <= 12 ? {dtick: 1} : {}),
      }),
      yaxis: axis(`${unit(figure)} (${group} clients, ${stage})`, scale.axis),
      hovermode: byRound ? 'x unified' : 'closest',
    }),
    alt: `${unit(figure)} of ${group} clients ${stage} personalizing against ${ACROSS[x](name)}. ` +
      `Last values: ${last.join('; ')}.`,
  };
}

// Who trains in no round is a level line from the first to the last.
function inUnits(line, points, figure, x, one, furthest) {
  const still = !line.cost.steps && !line.cost.down && !line.cost.up;
  const [middle, low, high] = [points.mean, points.low, points.high].map(values => values.map(scaled(figure)));
  const both = values => still ? [values.at(-1), values.at(-1)] : values;
  const across = still ? [0, furthest] : points[x].map(value => value / one);
  return {across, middle: both(middle), low: both(low), high: both(high), seeds: both(points.seeds)};
}

function atEnd({line, stage, across, middle}, figure, furthest, scale) {
  const [x, value] = [across.at(-1) / (furthest * 1.01), written(middle.at(-1), figure)];
  return {number: line.number, name: label(line, stage), value, x, y: scale.place(middle.at(-1))};
}

// A line over seeds, and behind it the area from the lowest to the highest of them.
function band({line, stage, across, middle, low, high, seeds}, byRound, size) {
  const {color, dash, mark} = look(line.number), name = legendName(line, stage, size);
  const said = at => seeds[at] > 1 ? ` (${short(low[at])} to ${short(high[at])}, ${seeds[at]} seeds)` : '';
  const area = {
    x: [...across, ...across.toReversed()], y: [...high, ...low.toReversed()], mode: 'lines', line: {width: 0},
    fill: 'toself', fillcolor: `${color}24`, hoverinfo: 'skip', showlegend: false,
  };
  const curve = {
    x: across, y: middle, mode: 'lines+markers', name,
    hoverinfo: byRound ? 'x+text' : 'text', cliponaxis: false,
    line: {color: color, dash, width: 2.4}, marker: {symbol: mark, size: 8, color: color, maxdisplayed: 8},
    text: middle.map((value, at) => `${plain(label(line, stage))}: ${short(value)}${said(at)}`),
  };
  return seeds.some(count => count > 1) ? [area, curve] : [curve];
}

charts.curves = curves;
