// Charts of what it cost.
'use strict';
const PARTS = {mb: ['down', 'up'], flops: ['flops', 'server'], steps: ['steps'], seconds: ['seconds']};
const PART_NAMES = {down: 'down', up: 'up', flops: 'of clients', server: 'of the server', steps: '', seconds: ''};

function cost(kind, size) {
  const lines = shown();
  if (!lines.length) return null;
  const parts = PARTS[kind].filter(key => lines.some(line => line.cost[key] !== undefined));
  const raw = lines.map(line => parts.reduce((sum, key) => sum + (line.cost[key] ?? 0), 0));
  const [one, name] = unitOf(kind, Math.max(...raw)), total = raw.map(value => value / one);
  const hatched = {pattern: {shape: '/', size: 6, solidity: 0.45, fillmode: 'overlay', fgcolor: css('--paper')}};
  const data = parts.map((key, at) => {
    const spent = lines.map(line => (line.cost[key] ?? 0) / one);
    return {
      type: 'bar', orientation: 'h', x: spent, y: lines.map((_, row) => row), width: 0.62, hoverinfo: 'text',
      marker: {color: lines.map(line => look(line.number).color), ...(at ? hatched : {})},
      hovertext: spent.map((value, row) => `${plain(lines[row].label)}: ${short(value)} ${name} ${PART_NAMES[key]}`),
    };
  });
  const figures = {text: total.map(short), textposition: 'outside', cliponaxis: false, constraintext: 'none'};
  Object.assign(data.at(-1), figures);
  return {
    data, alt: `${name}: ${lines.map((line, at) => `${line.label} ${short(total[at])}`).join('; ')}.`,
    layout: base({
      barmode: 'stack', margin: {l: 8, r: 56, t: 4, b: 40}, yaxis: rowsOf(lines.map(line => line.label), size),
      xaxis: axis(name, {nticks: 4, rangemode: 'tozero', tickangle: 0, exponentformat: 'none'}),
    }),
  };
}

charts.cost = cost;
