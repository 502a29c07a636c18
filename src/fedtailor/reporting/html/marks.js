// Charts with a mark for each client: one score against another, and changes in order.
'use strict';
const LEGEND_ABOVE = {
  orientation: 'h',
  xref: 'container',
  x: 0,
  yref: 'container',
  y: 1,
  yanchor: 'top',
  bgcolor: 'rgba(0,0,0,0)',
  traceorder: 'normal',
};
const MAX_MARK_SIZE = 40;
const MAX_LISTED_CLIENTS = 3;

// Lists of clients with the same x and y; each becomes one mark, whose area grows with its length.
function groupByPlace(clients) {
  const stacks = new Map();
  for (const client of clients) {
    const key = `${client.x} ${client.y}`;
    if (!stacks.has(key)) stacks.set(key, []);
    stacks.get(key).push(client);
  }
  return [...stacks.values()];
}

function formatClient({id, seed}) {
  return `${escapeText(id)}, seed ${seed}`;
}

function listClients(clients) {
  const names = clients.slice(0, MAX_LISTED_CLIENTS).map(formatClient).join('<br>');
  const numOthers = clients.length - MAX_LISTED_CLIENTS;
  return numOthers > 0 ? `${names}<br>and ${numOthers} more` : names;
}

// Clients {id, seed, x, y} of several groups on axes with one range, and the line where both scores
// are the same. `sides` are words for what is above and what is below this line.
function drawSquare(groups, metric, [xName, yName], sides = []) {
  const values = groups.flatMap(({clients}) => clients.flatMap(({x, y}) => [x, y]));
  const range = widen(getRange(values), 0.05);
  const diagonal = {
    x: range,
    y: range,
    mode: 'lines',
    hoverinfo: 'skip',
    showlegend: false,
    line: {color: css('--axis'), dash: 'dash', width: 1.2},
  };
  const stacksByGroup = groups.map(({clients}) => groupByPlace(clients));
  const largest = Math.max(...stacksByGroup.flat().map(stack => stack.length));
  const markSize = Math.max(3.5, Math.min(8, MAX_MARK_SIZE / Math.sqrt(largest)));
  const marks = groups.map((group, index) => ({
    ...drawStacks(stacksByGroup[index], group, markSize),
    text: stacksByGroup[index].map(stack => {
      const [{x, y}] = stack;
      return `${listClients(stack)}<br>${xName} ${formatShort(x)}, ${yName} ${formatShort(y)}`;
    }),
  }));
  const annotations = sides.map((side, index) => ({
    xref: 'paper',
    x: index,
    xanchor: index ? 'right' : 'left',
    yref: 'paper',
    y: 1,
    yanchor: 'bottom',
    showarrow: false,
    font: {size: 12, color: css('--soft')},
    text: `${index ? 'below' : 'above the line'}: ${side}`,
  }));
  const layout = makeLayout({
    xaxis: makeAxis(`${nameWithUnit(metric)} (${xName})`, {range, nticks: 7}),
    yaxis: makeAxis(`${nameWithUnit(metric)} (${yName})`, {range, nticks: 7}),
    annotations,
    margin: {l: 60, r: 16, t: 36, b: 48},
  });
  return {data: [diagonal, ...marks], layout};
}

function drawStacks(stacks, {color, symbol, name}, markSize) {
  const sizes = stacks.map(stack => Math.min(MAX_MARK_SIZE, markSize * Math.sqrt(stack.length)));
  return {
    type: 'scatter',
    mode: 'markers',
    name,
    x: stacks.map(([first]) => first.x),
    y: stacks.map(([first]) => first.y),
    cliponaxis: false,
    hoverinfo: 'text',
    marker: {symbol, size: sizes, color: `${color}70`, line: {color, width: 1.2}, opacity: 1},
  };
}

// Scores of the chosen method's clients before and after personalizing.
charts.pairs = kind => {
  const metric = getChoice('pairs-metric');
  const line = report.lines[Number(getChoice('pairs-line'))];
  const groups = collectPairs(line, metric);
  const parts = groups.map(group => describeGains(group, metric));
  const sentence = parts.length ? `${line.label_after}: ${parts.join('; ')}.` : '';
  document.getElementById('pairs-readout').textContent = sentence;
  if (!groups.length) return null;
  const drawKind = {marks: drawBeforeAfter, gains: drawSortedGains}[kind];
  const {data, layout} = drawKind(groups, metric);
  layout.legend = LEGEND_ABOVE;
  layout.showlegend = groups.length > 1;
  layout.margin = {l: 60, r: 16, t: 36, b: 48};
  return {data, layout, alt: sentence};
};

// The tested clients of each group, with x, the score before, and y, the score after personalizing.
function collectPairs(line, metric) {
  const groups = Object.entries(line.clients).map(([group, columns]) => {
    const before = toShownValues(columns[`before.${metric}`], metric);
    const after = toShownValues(columns[`after.${metric}`], metric);
    const clients = columns.ids.map((id, index) => (
      {id, seed: columns.seed[index], x: before[index], y: after[index]}));
    return {group, clients: clients.filter(({x, y}) => x !== null && y !== null)};
  });
  return groups.filter(({clients}) => clients.length);
}

function describeGains({group, clients}, metric) {
  const gains = clients.map(({x, y}) => y - x);
  const isBetter = gain => (isHigherBetter(metric) ? gain > 0 : gain < 0);
  const numBetter = gains.filter(isBetter).length;
  const numSame = gains.filter(gain => gain === 0).length;
  const meanGain = computeMean(gains);
  const sign = meanGain < 0 ? '\u2212' : '+';
  return `${numBetter} of ${gains.length} ${group} clients are better after personalizing, ` +
    `${numSame} the same, mean change ${sign}${formatScore(Math.abs(meanGain), metric)}`;
}

function getGroupStyle(group) {
  if (group === 'unseen') return {color: css('--c1'), symbol: 'diamond', dash: 'dash'};
  return {color: css('--c0'), symbol: 'circle', dash: 'solid'};
}

function drawBeforeAfter(groups, metric) {
  const named = groups.map(({group, clients}) => (
    {clients, name: `${group} clients`, ...getGroupStyle(group)}));
  return drawSquare(named, metric, ['before', 'after']);
}

function drawSortedGains(groups, metric) {
  const getGain = ({x, y}) => y - x;
  const data = groups.map(({group, clients}) => {
    const {color, symbol, dash} = getGroupStyle(group);
    const sorted = clients.toSorted((a, b) => getGain(a) - getGain(b));
    return {
      mode: 'lines+markers',
      name: `${group} clients`,
      x: sorted.map((_, rank) => (rank + 0.5) / sorted.length),
      y: sorted.map(getGain),
      line: {color, dash, width: 2},
      marker: {symbol, size: 6, color, maxdisplayed: 20},
      hoverinfo: 'text',
      text: sorted.map(client => `${formatClient(client)}: ${formatShort(getGain(client))}`),
    };
  });
  const layout = makeLayout({
    xaxis: makeAxis('share of clients', {range: [0, 1.02], tickformat: '.0%'}),
    yaxis: makeAxis(`change of ${nameWithUnit(metric)}`, {
      zeroline: true,
      zerolinecolor: css('--axis'),
      zerolinewidth: 1.2,
    }),
  });
  return {data, layout};
}
