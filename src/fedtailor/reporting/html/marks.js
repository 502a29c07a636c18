// Charts with a mark for each client: one figure against another, and changes in order.
'use strict';
const ABOVE = {
  orientation: 'h', xref: 'container', x: 0, yref: 'container', y: 1, yanchor: 'top', bgcolor: 'rgba(0,0,0,0)',
  traceorder: 'normal',
};
const LARGEST = 40;

// Clients with the same two figures are one mark, whose area grows with their number.
function merged(pairs) {
  const found = new Map();
  for (const pair of pairs) {
    const key = `${pair.x} ${pair.y}`;
    found.set(key, [...(found.get(key) ?? []), pair]);
  }
  return [...found.values()];
}

const clientName = ({id, seed}) => plain(id) + (seed === null ? '' : `, seed ${plain(seed)}`);

function who(clients) {
  const rest = clients.length > 3 ? `<br>and ${clients.length - 3} more` : '';
  return clients.slice(0, 3).map(clientName).join('<br>') + rest;
}

// Traces of marks on axes with one range, and the line on which both figures are the same; what its sides are, if said.
function squared(groups, figure, [across, up], sides = []) {
  const range = widened(extent(groups.flatMap(({pairs}) => pairs.flatMap(({x, y}) => [x, y]))), 0.05);
  const same = {
    x: range, y: range, mode: 'lines', hoverinfo: 'skip', showlegend: false,
    line: {color: css('--axis'), dash: 'dash', width: 1.2},
  };
  const stacks = groups.map(({pairs}) => merged(pairs));
  const most = Math.max(...stacks.flat().map(clients => clients.length));
  const data = [same, ...groups.map((look, at) => bubbles(look, stacks[at], most, [across, up]))];
  const [xaxis, yaxis] = [across, up].map(name => axis(`${unit(figure)} (${name})`, {range, nticks: 7}));
  const above = {
    yref: 'paper', xref: 'paper', y: 1, yanchor: 'bottom', showarrow: false, font: {size: 12, color: css('--soft')},
  };
  const annotations = sides.map((side, at) => (
    {...above, x: at, xanchor: at ? 'right' : 'left', text: `${at ? 'below' : 'above the line'}: ${side}`}));
  return {data, layout: base({xaxis, yaxis, annotations, margin: {l: 60, r: 16, t: 36, b: 48}})};
}

function bubbles({color, symbol, name}, stacks, most, [across, up]) {
  const one = Math.max(3.5, Math.min(8, LARGEST / Math.sqrt(most)));
  return {
    x: stacks.map(([first]) => first.x), y: stacks.map(([first]) => first.y), mode: 'markers', type: 'scatter', name,
    cliponaxis: false, hoverinfo: 'text', text: stacks.map(clients =>
      `${who(clients)}<br>${across} ${short(clients[0].x)}, ${up} ${short(clients[0].y)}`),
    marker: {
      symbol, size: stacks.map(clients => Math.min(LARGEST, one * Math.sqrt(clients.length))), color: `${color}70`,
      line: {color, width: 1.2}, opacity: 1,
    },
  };
}

function pairs(kind) {
  const figure = chosen('pairs-figure'), line = report.lines[+chosen('pairs-line')], found = changes(figure, line);
  const sentence = found.length ? `${line.tuned}: ${found.map(each => inWords(each, figure)).join('; ')}.` : '';
  document.getElementById('pairs-readout').textContent = sentence;
  if (!found.length) return null;
  const {data, layout} = {marks: beforeAfter, gains: sortedGains}[kind](found, figure);
  const more = {legend: ABOVE, showlegend: found.length > 1, margin: {l: 60, r: 16, t: 36, b: 48}};
  return {data, layout: {...layout, ...more}, alt: sentence};
}

// For each group of clients the method's figures before and after, of those who could be tested.
function changes(figure, line) {
  return Object.entries(line.clients).map(([group, all]) => {
    const [first, then] = ['before', 'after'].map(stage => all[`${stage}.${figure}`].map(scaled(figure)));
    const every = all.ids.map((id, at) => ({id, seed: all.seed[at], x: first[at], y: then[at]}));
    return {group, clients: every.filter(({x, y}) => x !== null && y !== null)};
  }).filter(({clients}) => clients.length);
}

function inWords({group, clients}, figure) {
  const gains = clients.map(({x, y}) => y - x), middle = mean(gains);
  const better = gains.filter(gain => higher(figure) ? gain > 0 : gain < 0).length;
  const same = gains.filter(gain => gain === 0).length, sign = middle < 0 ? '\u2212' : '+';
  return `${better} of ${gains.length} ${group} clients are better after personalizing, ${same} the same, ` +
    `mean change ${sign}${written(Math.abs(middle), figure)}`;
}

function groupLook(group) {
  return group === 'unseen' ? {color: css('--c1'), symbol: 'diamond', dash: 'dash'}
    : {color: css('--c0'), symbol: 'circle', dash: 'solid'};
}

function beforeAfter(found, figure) {
  const groups = found.map(({group, clients}) => ({pairs: clients, name: `${group} clients`, ...groupLook(group)}));
  return squared(groups, figure, ['before', 'after']);
}

function sortedGains(found, figure) {
  const data = found.map(({group, clients}) => {
    const {color, symbol, dash} = groupLook(group), gain = ({x, y}) => y - x;
    const order = clients.toSorted((a, b) => gain(a) - gain(b));
    return {
      x: order.map((_, rank) => (rank + 0.5) / order.length), y: order.map(gain), mode: 'lines+markers',
      name: `${group} clients`, line: {color, dash, width: 2}, marker: {symbol, size: 6, color, maxdisplayed: 20},
      hoverinfo: 'text', text: order.map(client => `${clientName(client)}: ${short(gain(client))}`),
    };
  });
  const zero = {zeroline: true, zerolinecolor: css('--axis'), zerolinewidth: 1.2};
  const xaxis = axis('share of clients', {range: [0, 1.02], tickformat: '.0%'});
  return {data, layout: base({xaxis, yaxis: axis(`change of ${unit(figure)}`, zero)})};
}

charts.pairs = pairs;
