// Charts of what it cost.
'use strict';

function cost(kind) {
  const lines = shown(), names = lines.map(line => plain(line.label)), places = lines.map((_, at) => at);
  if (!lines.length) return null;
  const hatched = {pattern: {shape: '/', size: 6, solidity: 0.45, fillmode: 'overlay', fgcolor: css('--paper')}};
  const bars = (key, more) => ({
    type: 'bar', orientation: 'h', x: lines.map(line => line.cost[key]), y: places, width: 0.62, hoverinfo: 'text',
    marker: {color: lines.map(line => look(line.number).colour), ...more},
    hovertext: lines.map((line, at) => `${names[at]}: ${short(line.cost[key])} ${key}`),
  });
  const data = kind === 'mb' ? [bars('down'), bars('up', hatched)] : [bars(kind)];
  const total = places.map(at => data.reduce((sum, trace) => sum + trace.x[at], 0));
  const figures = {text: total.map(short), textposition: 'outside', cliponaxis: false, constraintext: 'none'};
  Object.assign(data.at(-1), figures);
  const ends = {range: [names.length - 0.4, -0.6], tickvals: places, ticktext: names, showgrid: false, ticks: ''};
  return {
    data, alt: `${kind}: ${lines.map((line, at) => `${line.label} ${short(total[at])}`).join('; ')}.`,
    layout: base({
      barmode: 'stack', margin: {l: 8, r: 56, t: 4, b: 32}, yaxis: axis('', ends),
      xaxis: axis('', {nticks: 4, rangemode: 'tozero', tickangle: 0}),
    }),
  };
}

charts.cost = cost;
