// Charts of a data set alone: label x client, sizes, and what there is in all.
'use strict';
const COLOURINGS = {share: bySharesThere, count: byRoot};

function bySharesThere({labels, server_labels: server}) {
  const shares = [...labels, ...(server ? [server] : [])].map(row => Math.max(...row) / (sum(row) || 1));
  return byShare(extent([0, ...shares])[1]);
}

// The square root lets small numbers be seen beside large ones; the bar has the numbers themselves.
function byRoot({labels}) {
  const most = Math.max(1, extent(labels.map(row => Math.max(...row)))[1]);
  const ticks = [0, ...roundNumbers(most).filter(count => count >= most / 60)];
  return {level: Math.sqrt, most: Math.sqrt(most), bar: {tickvals: ticks.map(Math.sqrt), ticktext: ticks.map(short)}};
}

const sum = values => values.reduce((total, value) => total + value, 0);

// 1, 2, 5, 10, ...
function roundNumbers(most) {
  const powers = Array.from({length: Math.ceil(Math.log10(most)) + 1}, (_, power) => 10 ** power);
  return powers.flatMap(power => [power, 2 * power, 5 * power]).filter(count => count <= most);
}

function ordered(data, order) {
  if (order !== 'size') return data;
  const turn = data.group.map(group => data.group.indexOf(group));
  const places = turn.map((_, at) => at).sort((a, b) => turn[a] - turn[b] || data.sizes[b] - data.sizes[a]);
  const by = values => places.map(at => values[at]);
  return {...data, ids: by(data.ids), group: by(data.group), sizes: by(data.sizes), labels: by(data.labels)};
}

function heatmap() {
  const data = ordered(report.data, chosen('data-order')), {ids, group, labels} = data;
  const starts = ids.map((_, at) => at).filter(at => group[at] !== group[at - 1]);
  const made = clientByClient(data, starts, 'examples', COLOURINGS[chosen('data-color')](data));
  made.data[0].text = made.data[0].text.map((name, at) => `${name}<br>${listed(labels[at])}`);
  const kinds = mean(labels.map(row => row.filter(count => count).length));
  const sizes = starts.map((start, at) => `${(starts[at + 1] ?? ids.length) - start} ${group[start]}`).join(', ');
  return {...made, alt: `Labels of ${ids.length} clients (${sizes}); on average a client has ${short(kinds)} labels.`};
}

// The client's labels, commonest first, a few to a line.
function listed(counts) {
  const there = counts.map((count, kind) => ({count, kind})).filter(({count}) => count);
  const words = there.sort((a, b) => b.count - a.count).map(({count, kind}) => `label ${kind}: ${count}`);
  const rest = words.length > 12 ? `<br>and ${words.length - 12} more` : '';
  return words.slice(0, 12).map((word, at) => word + (at % 4 === 3 ? '<br>' : ' \u00a0 ')).join('') + rest;
}

// Bars stand side by side whatever they span, so that both kinds of steps are drawn alike.
function sizes() {
  const {median, most} = report.sizes, kind = chosen('sizes-axis') || 'linear';
  const {edges, clients} = report.sizes[kind];
  const place = value => {
    const at = edges.findLastIndex(edge => edge <= value);
    return at - 0.5 + (value - edges[at]) / ((edges[at + 1] ?? Infinity) - edges[at]);
  };
  const said = (count, at) => {
    const [low, high] = [Math.ceil(edges[at]), Math.floor(edges[at + 1])].map(edge => edge.toLocaleString('en'));
    return `${low === high ? low : `${low} to ${high}`} examples: ${count.toLocaleString('en')} clients`;
  };
  const ticks = kind === 'log' ? roundNumbers(most) : steps(edges);
  const inside = ticks.filter(tick => tick >= edges[0] && tick <= edges.at(-1));
  const line = {type: 'line', x0: place(median), x1: place(median), y0: 0, y1: 1, yref: 'paper'};
  return {
    data: [{
      type: 'bar', x: clients.map((_, at) => at), y: clients, width: 0.92, hoverinfo: 'text', textposition: 'none',
      text: clients.map(said), marker: {color: css('--c0')},
    }],
    layout: base({
      xaxis: axis('examples of a client', {
        range: [-0.8, clients.length - 0.2], tickvals: inside.map(place), ticktext: inside.map(short), showgrid: false,
      }),
      yaxis: axis('clients', {rangemode: 'tozero', nticks: 6}), margin: {l: 48, r: 16, t: 28, b: 48},
      shapes: [{...line, line: {color: css('--ink'), width: 1.2, dash: 'dash'}}],
      annotations: [{
        x: place(median), y: 1, yref: 'paper', yanchor: 'bottom', showarrow: false,
        text: `median ${median.toLocaleString('en')}`, font: {size: 12, color: css('--soft')},
      }],
    }),
    alt: `Sizes of clients, median ${median.toLocaleString('en')}, largest ${most.toLocaleString('en')}.`,
  };
}

// Five round numbers or so.
function steps(edges) {
  const span = edges.at(-1) - edges[0], power = 10 ** Math.floor(Math.log10(span / 5));
  const step = Math.max(1, [1, 2, 5, 10].map(factor => factor * power).find(size => span / size <= 6));
  return Array.from({length: Math.ceil(edges.at(-1) / step) + 1}, (_, at) => at * step);
}

function mixture() {
  const {clients, server} = report.mixture, kinds = clients.map((_, kind) => kind);
  const bars = (shares, name, color, more) => ({
    type: 'bar', x: kinds, y: shares, name, hoverinfo: 'text', textposition: 'none', marker: {color, ...more},
    text: shares.map((part, kind) => `label ${kind}, ${name}: ${short(100 * part)} %`),
  });
  const hatched = {pattern: {shape: '/', size: 6, solidity: 0.35, fillmode: 'overlay', fgcolor: css('--paper')}};
  const data = [bars(clients, 'clients, mean', css('--c0'))];
  if (server) data.push(bars(server, 'server', css('--c1'), kinds.length > 20 ? {} : hatched));
  const worst = server ? clients.map((part, kind) => Math.abs(part - server[kind])) : [];
  const gap = server ? `; the server differs most in label ${worst.indexOf(Math.max(...worst))}` : '';
  return {
    data, alt: `Shares of ${kinds.length} labels among clients${server ? ' and at the server' : ''}${gap}.`,
    layout: base({
      barmode: 'group', bargap: 0.25, bargroupgap: 0.05, showlegend: data.length > 1,
      margin: {l: 48, r: 16, t: 28, b: 48},
      legend: {orientation: 'h', x: 0, y: 1, yanchor: 'bottom', bgcolor: 'rgba(0,0,0,0)'},
      xaxis: axis('label', {dtick: kinds.length > 20 ? 10 : 1, showgrid: false, ticks: '', tickangle: 0}),
      yaxis: axis('', {tickformat: '.0%', rangemode: 'tozero', nticks: 6}),
    }),
  };
}

Object.assign(charts, {data: heatmap, sizes, mixture});
