// Charts of what it cost and of the data.
'use strict';
const MOST_BARS = 400;

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

// Sizes of the clients above; below, where labels are known, the share of each label in each client and the server.
function picture() {
  const {ids, group, train, labels, server} = report.data;
  const starts = ids.map((_, at) => at).filter(at => group[at] !== group[at - 1]);
  const sizes = starts.map((start, at) => `${(starts[at + 1] ?? ids.length) - start} ${group[start]}`).join(', ');
  const {data, layout} = !labels && ids.length > MOST_BARS ? manySizes(train) : clientByClient(report.data, starts);
  const [least, most] = [Math.min(...train), Math.max(...train)];
  const alt = `Clients by group: ${sizes}; ${least} to ${most} train examples each; the server holds ${server}.`;
  return {data, layout, alt};
}

function manySizes(train) {
  const data = [{type: 'histogram', x: train, marker: {color: css('--c0')}}];
  return {data, layout: base({xaxis: axis('train examples of a client'), yaxis: axis('clients'), bargap: 0.05})};
}

function clientByClient({ids, group, train, labels, server_labels: server}, starts) {
  const places = ids.map((_, at) => at);
  const names = places.map(at => `${plain(ids[at])} (${group[at]}), ${train[at]} train examples`);
  const sizes = {
    type: 'bar', x: places, y: train, yaxis: 'y2', marker: {color: css('--muted')}, text: names, textposition: 'none',
    hoverinfo: 'text',
  };
  const layout = base({
    margin: {l: 48, r: 16, t: 44, b: 40}, bargap: 0.15, ...groupNames(group, starts, ids.length),
    xaxis: axis('clients', {
      domain: [0, labels && server ? 0.93 : 1], anchor: labels ? 'y' : 'y2', range: [-0.5, ids.length - 0.5],
      showgrid: false, showticklabels: false, ticks: '',
    }),
    yaxis2: axis('examples', {domain: [labels ? 0.8 : 0, 1], anchor: 'x', nticks: 4}),
  });
  if (!labels) return {data: [sizes], layout};
  const kinds = labels[0].length, steps = [0, 0.25, 0.5, 1].map((at, step) => [at, css(`--heat${step}`)]);
  const colorbar = {thickness: 8, tickformat: '.0%', outlinewidth: 0, len: 0.8, y: 0, yanchor: 'bottom'};
  layout.coloraxis = {cmin: 0, cmax: 1, colorscale: steps, colorbar};
  layout.yaxis = axis('label', {
    domain: [0, 0.76], autorange: 'reversed', showgrid: false, dtick: kinds > 20 ? 10 : 1, ticks: '',
  });
  if (!server) return {data: [sizes, heat(names, labels)], layout};
  layout.xaxis2 = axis('', {
    domain: [0.95, 1], anchor: 'y', tickvals: [0], ticktext: ['server'], showgrid: false, ticks: '',
  });
  return {data: [sizes, heat(names, labels), {...heat(['server'], [server]), xaxis: 'x2'}], layout};
}

// A column for each holder of data, a row for each label; the colour is the label's share of the holder's examples.
function heat(names, counts) {
  const totals = counts.map(row => row.reduce((sum, count) => sum + count, 0) || 1);
  const kinds = counts[0].map((_, kind) => kind);
  const rows = each => kinds.map(kind => counts.map((row, at) => each(row[kind], at, kind)));
  return {
    type: 'heatmap', coloraxis: 'coloraxis', x: names.map((_, at) => at), y: kinds,
    z: rows((count, at) => count / totals[at]),
    text: rows((count, at, kind) => `${names[at]}<br>label ${kind}: ${count} examples`), hoverinfo: 'text',
    xgap: names.length <= 120 ? 1 : 0, ygap: 1,
  };
}

// Names of the groups above their first clients, one row higher where they would touch, and lines between groups.
function groupNames(group, starts, clients) {
  let end = -1, row = 0;
  const annotations = starts.map(start => {
    row = start / clients < end ? row + 1 : 0;
    end = start / clients + 80 / Math.min(innerWidth, 1100);
    return {
      x: start - 0.5, y: 1, yref: 'paper', xanchor: 'left', yanchor: 'bottom', yshift: 4 + 16 * row, showarrow: false,
      text: group[start], font: {size: 12, color: css('--soft')},
    };
  });
  const shapes = starts.slice(1).map(start => ({
    type: 'line', x0: start - 0.5, x1: start - 0.5, y0: 0, y1: 1.02, yref: 'paper',
    line: {color: css('--ink'), width: 1.2},
  }));
  return {annotations, shapes};
}
