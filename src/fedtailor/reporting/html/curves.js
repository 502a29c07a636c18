// Scores against rounds, bytes sent, or work of clients.
'use strict';
const MAX_TICKED_ROUNDS = 12;  // with a tick each

function describeX(x, unitName) {
  if (x === 'mb') return `${unitName} sent, down and up together`;
  return x === 'flops' ? `${unitName} of clients` : 'round';
}

charts.curves = (_, size) => {
  const group = getChoice('curves-group');
  const stage = getChoice('curves-stage');
  const metric = getChoice('curves-metric');
  const x = getChoice('curves-x');
  const scored = getShownLines()
    .map(line => ({line, points: line.curves[group]?.[stage]?.[metric]}))
    .filter(({points}) => points);
  if (!scored.length) return null;
  const largest = Math.max(...scored.map(({points}) => points[x].at(-1)));
  const [unit, unitName] = chooseUnit(x, largest);
  const xEnd = largest / unit || 1;
  const xLabel = describeX(x, unitName);
  const isByRound = x === 'round';
  const curves = scored.map(({line, points}) => {
    const values = convertPoints(line, points, metric, points[x].map(value => value / unit), xEnd);
    return {line, stage, ...values};
  });
  const scale = makeScale(curves.flatMap(({low, high}) => [...low, ...high]), metric);
  const ends = curves.map(curve => describeEnd(curve, metric, xEnd, scale));
  const names = placeNames(ends, size);
  const words = curves.map(({line, mean}) => {
    return `${getLabel(line, stage)} ${formatShort(mean.at(-1))}`;
  });
  const xAxis = makeAxis(xLabel, {
    range: [0, xEnd * 1.01],
    unifiedhovertitle: {text: 'round %{x}'},
  });
  if (isByRound && xEnd <= MAX_TICKED_ROUNDS) xAxis.dtick = 1;
  return {
    data: curves.flatMap(curve => drawCurve(curve, isByRound, size)),
    hasLegend: !names.hasNames && curves.length > 1,
    layout: makeLayout({
      margin: {l: 56, r: names.right, t: 12, b: 48},
      annotations: names.annotations,
      shapes: names.shapes,
      ...makeLegendBelow(size, curves.length),
      xaxis: xAxis,
      yaxis: makeAxis(`${nameWithUnit(metric)} (${group} clients, ${stage})`, scale.axis),
      hovermode: isByRound ? 'x unified' : 'closest',
    }),
    alt: `${nameWithUnit(metric)} of ${group} clients ${stage} personalizing against ${xLabel}. ` +
      `Last values: ${words.join('; ')}.`,
  };
};

// Points in the units that are shown. A method that trains in no round, as local training, is a
// level line from the first round to the last.
function convertPoints(line, points, metric, xs, xEnd) {
  const isLevel = line.cost.steps === 0 && line.cost.down === 0 && line.cost.up === 0;
  const level = values => (isLevel ? [values.at(-1), values.at(-1)] : values);
  return {
    xs: isLevel ? [0, xEnd] : xs,
    mean: level(toShownValues(points.mean, metric)),
    low: level(toShownValues(points.low, metric)),
    high: level(toShownValues(points.high, metric)),
    seeds: level(points.seeds),
  };
}

function describeEnd({line, stage, xs, mean}, metric, xEnd, scale) {
  return {
    index: line.index,
    name: getLabel(line, stage),
    value: formatScore(mean.at(-1), metric),
    x: xs.at(-1) / (xEnd * 1.01),
    y: scale.getPlace(mean.at(-1)),
  };
}

// The mean over seeds and, behind it, the area from the lowest seed to the highest.
function drawCurve({line, stage, xs, mean, low, high, seeds}, isByRound, size) {
  const {color, dash, mark} = getStyle(line.index);
  const label = escapeText(getLabel(line, stage));
  const texts = mean.map((value, index) => {
    const text = `${label}: ${formatShort(value)}`;
    if (seeds[index] === 1) return text;
    const range = `${formatShort(low[index])} to ${formatShort(high[index])}`;
    return `${text} (${range}, ${seeds[index]} seeds)`;
  });
  const curve = {
    x: xs,
    y: mean,
    mode: 'lines+markers',
    name: makeLegendName(line, stage, size),
    hoverinfo: isByRound ? 'x+text' : 'text',
    cliponaxis: false,
    line: {color, dash, width: 2.4},
    marker: {symbol: mark, size: 8, color, maxdisplayed: 8},
    text: texts,
  };
  const hasBand = seeds.some(count => count > 1);
  if (!hasBand) return [curve];
  const band = {
    x: [...xs, ...xs.toReversed()],
    y: [...high, ...low.toReversed()],
    mode: 'lines',
    line: {width: 0},
    fill: 'toself',
    fillcolor: `${color}24`,
    hoverinfo: 'skip',
    showlegend: false,
  };
  return [band, curve];
}
