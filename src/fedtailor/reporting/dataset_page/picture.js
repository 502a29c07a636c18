// Charts of a data set: labels by client, sizes of clients, and shares of labels overall.
'use strict';
const MAX_LISTED_LABELS = 12;
const LABELS_PER_LINE = 4;
const MAX_TICKED_LABELS = 20;  // with a tick each

// The color scale of shares ends at the largest share.
function colorByShare({labels, server_labels: serverLabels}) {
  const rows = serverLabels ? [...labels, serverLabels] : labels;
  const largestShares = rows.map(row => Math.max(...row) / (computeSum(row) || 1));
  return {
    getLevel: (count, total) => count / total,
    most: getRange([0, ...largestShares])[1],
    bar: {tickformat: '.0%'},
  };
}

// Square roots let small counts be seen beside large ones; the color bar has the counts themselves.
function colorByCount({labels}) {
  const largest = getRange(labels.map(row => Math.max(...row)))[1];
  const most = Math.max(1, largest);
  const ticks = [0, ...listRoundNumbers(most).filter(count => count >= most / 60)];
  return {
    getLevel: Math.sqrt,
    most: Math.sqrt(most),
    bar: {tickvals: ticks.map(Math.sqrt), ticktext: ticks.map(formatShort)},
  };
}

// 1, 2, 5, 10, ... up to `most`.
function listRoundNumbers(most) {
  const numPowers = Math.ceil(Math.log10(most)) + 1;
  const powers = Array.from({length: numPowers}, (_, exponent) => 10 ** exponent);
  const numbers = powers.flatMap(power => [power, 2 * power, 5 * power]);
  return numbers.filter(number => number <= most);
}

// Clients by group and size, the largest first; they come by group and main label.
function sortBySize(data) {
  const ranks = data.group.map(group => data.group.indexOf(group));
  const order = ranks.map((_, index) => index);
  order.sort((a, b) => ranks[a] - ranks[b] || data.sizes[b] - data.sizes[a]);
  const reorder = values => order.map(index => values[index]);
  return {
    ...data,
    ids: reorder(data.ids),
    group: reorder(data.group),
    sizes: reorder(data.sizes),
    labels: reorder(data.labels),
  };
}

charts.data = () => {
  const isBySize = getChoice('data-order') === 'size';
  const data = isBySize ? sortBySize(report.data) : report.data;
  const chooseColor = {share: colorByShare, count: colorByCount}[getChoice('data-color')];
  const chart = drawClientByClient(data, 'examples', chooseColor(data));
  const [bars] = chart.data;
  bars.text = bars.text.map((name, index) => `${name}<br>${listLabels(data.labels[index])}`);
  const labelsPerClient = data.labels.map(row => row.filter(count => count).length);
  const alt = `Labels of ${data.ids.length} clients (${countGroups(data.group)}); ` +
    `on average a client has ${formatShort(computeMean(labelsPerClient))} labels.`;
  return {...chart, alt};
};

// A client's labels, the most frequent first, a few to a line.
function listLabels(counts) {
  const present = counts.map((count, label) => ({count, label})).filter(({count}) => count);
  present.sort((a, b) => b.count - a.count);
  const words = present.slice(0, MAX_LISTED_LABELS).map(({count, label}, index) => {
    const isLineEnd = (index + 1) % LABELS_PER_LINE === 0;
    return `label ${label}: ${count}${isLineEnd ? '<br>' : ' \u00a0 '}`;
  });
  const numOthers = present.length - MAX_LISTED_LABELS;
  return words.join('') + (numOthers > 0 ? `<br>and ${numOthers} more` : '');
}

// Bars stand side by side whatever they span, so that both kinds of steps are drawn alike.
charts.sizes = () => {
  const {median, most} = report.sizes;
  const steps = getChoice('sizes-axis') || 'linear';
  const {edges, clients} = report.sizes[steps];
  // The place of a size on the axis of bars.
  const getPlace = size => {
    const bar = edges.findLastIndex(edge => edge <= size);
    const end = edges[bar + 1] ?? Infinity;
    return bar - 0.5 + (size - edges[bar]) / (end - edges[bar]);
  };
  const texts = clients.map((count, bar) => {
    const low = Math.ceil(edges[bar]).toLocaleString('en');
    const high = Math.floor(edges[bar + 1]).toLocaleString('en');
    const range = low === high ? low : `${low} to ${high}`;
    return `${range} examples: ${count.toLocaleString('en')} clients`;
  });
  const allTicks = steps === 'log' ? listRoundNumbers(most) : listEvenTicks(edges);
  const ticks = allTicks.filter(tick => tick >= edges[0] && tick <= edges.at(-1));
  const medianPlace = getPlace(median);
  const medianText = median.toLocaleString('en');
  return {
    data: [{
      type: 'bar',
      x: clients.map((_, bar) => bar),
      y: clients,
      width: 0.92,
      marker: {color: css('--c0')},
      text: texts,
      textposition: 'none',
      hoverinfo: 'text',
    }],
    layout: makeLayout({
      margin: {l: 48, r: 16, t: 28, b: 48},
      xaxis: makeAxis('examples of a client', {
        range: [-0.8, clients.length - 0.2],
        tickvals: ticks.map(getPlace),
        ticktext: ticks.map(formatShort),
        showgrid: false,
      }),
      yaxis: makeAxis('clients', {rangemode: 'tozero', nticks: 6}),
      shapes: [{
        type: 'line',
        x0: medianPlace,
        x1: medianPlace,
        yref: 'paper',
        y0: 0,
        y1: 1,
        line: {color: css('--ink'), width: 1.2, dash: 'dash'},
      }],
      annotations: [{
        x: medianPlace,
        yref: 'paper',
        y: 1,
        yanchor: 'bottom',
        showarrow: false,
        text: `median ${medianText}`,
        font: {size: 12, color: css('--soft')},
      }],
    }),
    alt: `Sizes of clients, median ${medianText}, largest ${most.toLocaleString('en')}.`,
  };
};

// About five round numbers.
function listEvenTicks(edges) {
  const span = edges.at(-1) - edges[0];
  const power = 10 ** Math.floor(Math.log10(span / 5));
  const candidates = [1, 2, 5, 10].map(factor => factor * power);
  const step = Math.max(1, candidates.find(size => span / size <= 6));
  const numTicks = Math.ceil(edges.at(-1) / step) + 1;
  return Array.from({length: numTicks}, (_, index) => index * step);
}

charts.mixture = () => {
  const {clients, server} = report.mixture;
  const numLabels = clients.length;
  const hasManyLabels = numLabels > MAX_TICKED_LABELS;
  const data = [drawShares(clients, 'clients, mean', {color: css('--c0')})];
  let atServer = '';
  let difference = '';
  if (server) {
    const marker = {color: css('--c1')};
    if (!hasManyLabels) {
      marker.pattern = {
        shape: '/', size: 6, solidity: 0.35, fillmode: 'overlay', fgcolor: css('--paper'),
      };
    }
    data.push(drawShares(server, 'server', marker));
    const gaps = clients.map((share, label) => Math.abs(share - server[label]));
    const worst = gaps.indexOf(Math.max(...gaps));
    atServer = ' and at the server';
    difference = `; the server differs most in label ${worst}`;
  }
  return {
    data,
    alt: `Shares of ${numLabels} labels among clients${atServer}${difference}.`,
    layout: makeLayout({
      barmode: 'group',
      bargap: 0.25,
      bargroupgap: 0.05,
      showlegend: data.length > 1,
      margin: {l: 48, r: 16, t: 28, b: 48},
      legend: {orientation: 'h', x: 0, y: 1, yanchor: 'bottom', bgcolor: 'rgba(0,0,0,0)'},
      xaxis: makeAxis('label', {
        dtick: hasManyLabels ? 10 : 1,
        showgrid: false,
        ticks: '',
        tickangle: 0,
      }),
      yaxis: makeAxis('', {tickformat: '.0%', rangemode: 'tozero', nticks: 6}),
    }),
  };
};

function drawShares(shares, name, marker) {
  return {
    type: 'bar',
    x: shares.map((_, label) => label),
    y: shares,
    name,
    marker,
    text: shares.map((share, label) => `label ${label}, ${name}: ${formatShort(100 * share)} %`),
    textposition: 'none',
    hoverinfo: 'text',
  };
}
