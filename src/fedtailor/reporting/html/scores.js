// How scores differ from client to client.
'use strict';

function spread(group, size) {
  const [shape, stage, figure] = ['shape', 'stage', 'figure'].map(name => chosen(`spread-${name}`));
  const lines = shown();
  const tested = (line, which) => (line.clients[which]?.[`${stage}.${figure}`] ?? [])
    .filter(value => value !== null).map(scaled(figure)).sort((a, b) => a - b);
  const scored = lines.map(line => ({line, values: tested(line, group)})).filter(({values}) => values.length);
  if (!scored.length) return null;
  const range = extent(lines.flatMap(line => report.groups.flatMap(each => tested(line, each))));
  const means = scored.map(({line, values}) => `${label(line, stage)} ${short(mean(values))}`);
  const trace = {ecdf, histogram, violin}[shape], yaxis = {
    ecdf: axis('share of clients at or below', {range: [0, 1.03], tickformat: '.0%'}),
    histogram: axis('clients', {rangemode: 'tozero'}),
    violin: axis('', {autorange: 'reversed', showgrid: false, showticklabels: false, ticks: ''}),
  }[shape];
  return {
    data: scored.map(({line, values}) => (
      {name: legendName(line, stage, size), ...trace(values, look(line.number), range, scored.length)})),
    layout: base({
      xaxis: axis(`${unit(figure)} (${when(stage)})`, {range: widened(range, 0.03)}), yaxis,
      ...legendBelow(size, scored.length),
    }),
    legend: scored.length > 1,
    alt: `How ${unit(figure)} ${when(stage)} personalizing differs over ${group} clients. Means: ${means.join('; ')}.`,
  };
}

function ecdf(values, {color, dash, mark}) {
  return {
    x: [values[0], ...values], y: [0, ...values.map((_, at) => (at + 1) / values.length)], mode: 'lines+markers',
    line: {color: color, dash, width: 2.2, shape: 'hv'},
    marker: {symbol: mark, size: 7, color: color, maxdisplayed: 5},
    hovertemplate: '%{y:.0%} at %{x:.4~g} or less',
  };
}

// As outlines, filled where they are few enough to be told apart.
function histogram(values, {color, dash, mark}, [low, high], lines) {
  const bins = Math.min(20, Math.max(6, Math.ceil(Math.sqrt(values.length)))), width = (high - low) / bins;
  const counts = Array(bins).fill(0);
  for (const value of values) counts[Math.min(bins - 1, Math.floor((value - low) / width))] += 1;
  return {
    x: counts.map((_, at) => low + (at + 0.5) * width), y: counts, mode: 'lines+markers',
    fill: lines <= 3 ? 'tozeroy' : 'none', fillcolor: `${color}1f`, hovertemplate: '%{y} clients around %{x:.4~g}',
    line: {color: color, dash, width: 2, shape: 'hvh'},
    marker: {symbol: mark, size: 6, color: color, maxdisplayed: 8},
  };
}

function violin(values, {color, mark}) {
  return {
    type: 'violin', x: values, orientation: 'h', points: values.length <= 60 ? 'all' : false, pointpos: 0, jitter: 0.6,
    spanmode: 'hard', meanline: {visible: true}, line: {color: color, width: 1.6}, fillcolor: `${color}33`,
    marker: {symbol: mark, size: 4, opacity: 0.6}, hoverinfo: 'x+name',
  };
}

charts.spread = spread;
