// A chart of the data: how many examples of which labels each client has.
'use strict';
const MAX_BARS = 400;  // of clients one by one

// Sizes of the clients above and, where labels are known, the share of each label in each client
// and at the server below.
charts.data = () => {
  const {ids, group, train, labels, server} = report.data;
  const hasManyBars = !labels && ids.length > MAX_BARS;
  const color = {getLevel: (count, total) => count / total, most: 1, bar: {tickformat: '.0%'}};
  const clients = {...report.data, sizes: train};
  const drawClients = () => drawClientByClient(clients, 'train examples', color);
  const chart = hasManyBars ? drawSizeHistogram(train) : drawClients();
  const range = `${Math.min(...train)} to ${Math.max(...train)}`;
  const alt = `Clients by group: ${countGroups(group)}; ${range} train examples each; ` +
    `the server holds ${server}.`;
  return {...chart, alt};
};

function drawSizeHistogram(sizes) {
  const layout = makeLayout({
    xaxis: makeAxis('train examples of a client'),
    yaxis: makeAxis('clients'),
    bargap: 0.05,
  });
  return {data: [{type: 'histogram', x: sizes, marker: {color: css('--c0')}}], layout};
}

// The places where another group begins; `group` has the group of each client.
function findGroupStarts(group) {
  return group.map((_, index) => index).filter(index => group[index] !== group[index - 1]);
}

function countGroups(group) {
  const starts = findGroupStarts(group);
  const parts = starts.map((start, index) => {
    const end = starts[index + 1] ?? group.length;
    return `${end - start} ${group[start]}`;
  });
  return parts.join(', ');
}

// Bars of sizes above a heat map of labels. `what` is what sizes count. `color` has getLevel, which
// turns a count of a label and its client's total into a level from 0 to `most`, and the color bar.
function drawClientByClient({ids, group, sizes, labels, server_labels: serverLabels}, what, color) {
  const hasServer = labels && serverLabels;
  const names = ids.map((id, index) => {
    return `${escapeText(id)} (${group[index]}), ${sizes[index].toLocaleString('en')} ${what}`;
  });
  const bars = {
    type: 'bar',
    x: ids.map((_, index) => index),
    y: sizes,
    yaxis: 'y2',
    marker: {color: css('--muted')},
    text: names,
    textposition: 'none',
    hoverinfo: 'text',
  };
  const layout = makeLayout({
    margin: {l: 48, r: 16, t: 44, b: 40},
    bargap: 0.15,
    ...markGroups(group),
    xaxis: makeAxis('clients', {
      domain: [0, hasServer ? 0.93 : 1],
      anchor: labels ? 'y' : 'y2',
      range: [-0.5, ids.length - 0.5],
      showgrid: false,
      showticklabels: false,
      ticks: '',
    }),
    yaxis2: makeAxis('examples', {domain: [labels ? 0.8 : 0, 1], anchor: 'x', nticks: 4}),
  });
  if (!labels) return {data: [bars], layout};
  const data = [bars, drawHeat(names, labels, color)];
  layout.coloraxis = makeColorAxis(color);
  layout.yaxis = makeAxis('label', {
    domain: [0, 0.76],
    autorange: 'reversed',
    showgrid: false,
    dtick: labels[0].length > 20 ? 10 : 1,
    ticks: '',
  });
  if (hasServer) {
    data.push({...drawHeat(['server'], [serverLabels], color), xaxis: 'x2'});
    layout.xaxis2 = makeAxis('', {
      domain: [0.95, 1],
      anchor: 'y',
      tickvals: [0],
      ticktext: ['server'],
      showgrid: false,
      ticks: '',
    });
  }
  return {data, layout};
}

function makeColorAxis({most, bar}) {
  const stops = [0, 0.25, 0.5, 1].map((level, index) => [level, css(`--heat${index}`)]);
  return {
    cmin: 0,
    cmax: most,
    colorscale: stops,
    colorbar: {thickness: 8, outlinewidth: 0, len: 0.8, y: 0, yanchor: 'bottom', ...bar},
  };
}

// A column for each client, or for the server, and a row for each label.
function drawHeat(names, counts, {getLevel}) {
  const totals = counts.map(row => computeSum(row) || 1);
  const labels = counts[0].map((_, label) => label);
  const makeRows = getCell => labels.map(label => {
    return counts.map((row, client) => getCell(row[label], client, label));
  });
  return {
    type: 'heatmap',
    coloraxis: 'coloraxis',
    x: names.map((_, client) => client),
    y: labels,
    z: makeRows((count, client) => getLevel(count, totals[client])),
    text: makeRows((count, client, label) => {
      return `${names[client]}<br>label ${label}: ${count} examples`;
    }),
    hoverinfo: 'text',
    xgap: names.length <= 120 ? 1 : 0,
    ygap: 1,
  };
}

// Names of the groups above their first clients, one row higher where they would touch, and lines
// between groups.
function markGroups(group) {
  const starts = findGroupStarts(group);
  const isPrinting = document.documentElement.matches('.printing');
  const width = Math.min(innerWidth, isPrinting ? PRINT_WIDTH : 1100);
  const nameWidth = 80 / width;
  let previousEnd = -1;
  let row = 0;
  const annotations = starts.map(start => {
    const place = start / group.length;
    row = place < previousEnd ? row + 1 : 0;
    previousEnd = place + nameWidth;
    return {
      x: start - 0.5,
      xanchor: 'left',
      yref: 'paper',
      y: 1,
      yanchor: 'bottom',
      yshift: 4 + 16 * row,
      showarrow: false,
      text: group[start],
      font: {size: 12, color: css('--soft')},
    };
  });
  const shapes = starts.slice(1).map(start => ({
    type: 'line',
    x0: start - 0.5,
    x1: start - 0.5,
    yref: 'paper',
    y0: 0,
    y1: 1.02,
    line: {color: css('--ink'), width: 1.2},
  }));
  return {annotations, shapes};
}
