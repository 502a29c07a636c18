// How scores differ between clients.
'use strict';

charts.spread = (group, size) => {
  const shape = getChoice('spread-shape');
  const stage = getChoice('spread-stage');
  const metric = getChoice('spread-metric');
  const lines = getShownLines();
  const scored = lines
    .map(line => ({line, values: getSortedScores(line, group, stage, metric)}))
    .filter(({values}) => values.length);
  if (!scored.length) return null;
  // One range for the charts of all groups.
  const range = getRange(report.groups.flatMap(name => lines.flatMap(line => {
    return getSortedScores(line, name, stage, metric);
  })));
  const drawShape = {ecdf: drawEcdf, histogram: drawHistogram, violin: drawViolin}[shape];
  const means = scored.map(({line, values}) => {
    return `${getLabel(line, stage)} ${formatShort(computeMean(values))}`;
  });
  return {
    data: scored.map(({line, values}) => ({
      name: makeLegendName(line, stage, size),
      ...drawShape(values, getStyle(line.index), range, scored.length),
    })),
    hasLegend: scored.length > 1,
    layout: makeLayout({
      xaxis: makeAxis(`${nameWithUnit(metric)} (${describeStage(stage)})`, {
        range: widen(range, 0.03),
      }),
      yaxis: makeShapeAxis(shape),
      ...makeLegendBelow(size, scored.length),
    }),
    alt: `How ${nameWithUnit(metric)} ${describeStage(stage)} personalizing differs over ` +
      `${group} clients. Means: ${means.join('; ')}.`,
  };
};

function getSortedScores(line, group, stage, metric) {
  const scores = line.clients[group]?.[`${stage}.${metric}`] ?? [];
  const tested = scores.filter(score => score !== null);
  return toShownValues(tested, metric).sort((a, b) => a - b);
}

function makeShapeAxis(shape) {
  if (shape === 'ecdf') {
    return makeAxis('share of clients at or below', {range: [0, 1.03], tickformat: '.0%'});
  }
  if (shape === 'histogram') return makeAxis('clients', {rangemode: 'tozero'});
  return makeAxis('', {autorange: 'reversed', showgrid: false, showticklabels: false, ticks: ''});
}

function drawEcdf(values, {color, dash, mark}) {
  return {
    x: [values[0], ...values],
    y: [0, ...values.map((_, index) => (index + 1) / values.length)],
    mode: 'lines+markers',
    line: {color, dash, width: 2.2, shape: 'hv'},
    marker: {symbol: mark, size: 7, color, maxdisplayed: 5},
    hovertemplate: '%{y:.0%} at %{x:.4~g} or less',
  };
}

// An outline, filled where there are few enough of them to be told apart.
function drawHistogram(values, {color, dash, mark}, [low, high], numLines) {
  const numBins = Math.min(20, Math.max(6, Math.ceil(Math.sqrt(values.length))));
  const binWidth = (high - low) / numBins;
  const counts = Array(numBins).fill(0);
  for (const value of values) {
    const bin = Math.floor((value - low) / binWidth);
    counts[Math.min(numBins - 1, bin)] += 1;
  }
  return {
    x: counts.map((_, bin) => low + (bin + 0.5) * binWidth),
    y: counts,
    mode: 'lines+markers',
    fill: numLines <= 3 ? 'tozeroy' : 'none',
    fillcolor: `${color}1f`,
    line: {color, dash, width: 2, shape: 'hvh'},
    marker: {symbol: mark, size: 6, color, maxdisplayed: 8},
    hovertemplate: '%{y} clients around %{x:.4~g}',
  };
}

function drawViolin(values, {color, mark}) {
  return {
    type: 'violin',
    x: values,
    orientation: 'h',
    points: values.length <= 60 ? 'all' : false,
    pointpos: 0,
    jitter: 0.6,
    spanmode: 'hard',
    meanline: {visible: true},
    line: {color, width: 1.6},
    fillcolor: `${color}33`,
    marker: {symbol: mark, size: 4, opacity: 0.6},
    hoverinfo: 'x+name',
  };
}
