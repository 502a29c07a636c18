// Charts of costs: communication, computation, steps and time.
'use strict';
const COST_PARTS = {
  mb: ['down', 'up'],
  flops: ['flops', 'server'],
  steps: ['steps'],
  seconds: ['seconds'],
};
const PART_NAMES = {down: 'down', up: 'up', flops: 'of clients', server: 'of the server'};

charts.cost = (quantity, size) => {
  const lines = getShownLines();
  if (!lines.length) return null;
  const parts = COST_PARTS[quantity];
  const totals = lines.map(line => computeSum(parts.map(part => line.cost[part])));
  const [unit, unitName] = chooseUnit(quantity, Math.max(...totals));
  const figures = totals.map(total => formatShort(total / unit));
  const data = parts.map((part, index) => drawCostPart(lines, part, index > 0, unit, unitName));
  Object.assign(data.at(-1), {
    text: figures,
    textposition: 'outside',
    cliponaxis: false,
    constraintext: 'none',
  });
  const words = lines.map((line, index) => `${line.label} ${figures[index]}`);
  return {
    data,
    alt: `${unitName}: ${words.join('; ')}.`,
    layout: makeLayout({
      barmode: 'stack',
      margin: {l: 8, r: 56, t: 4, b: 40},
      yaxis: makeRowAxis(lines.map(line => line.label), size),
      xaxis: makeAxis(unitName, {
        nticks: 4,
        rangemode: 'tozero',
        tickangle: 0,
        exponentformat: 'none',
      }),
    }),
  };
};

function drawCostPart(lines, part, isHatched, unit, unitName) {
  const costs = lines.map(line => line.cost[part] / unit);
  const marker = {color: lines.map(line => getStyle(line.index).color)};
  if (isHatched) {
    marker.pattern = {
      shape: '/', size: 6, solidity: 0.45, fillmode: 'overlay', fgcolor: css('--paper'),
    };
  }
  const partName = PART_NAMES[part] ?? '';
  return {
    type: 'bar',
    orientation: 'h',
    x: costs,
    y: lines.map((_, row) => row),
    width: 0.62,
    marker,
    hoverinfo: 'text',
    hovertext: costs.map((cost, row) => {
      const label = escapeText(lines[row].label);
      return `${label}: ${formatShort(cost)} ${unitName} ${partName}`;
    }),
  };
}
