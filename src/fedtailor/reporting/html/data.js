// A chart of the data: who has how much of what.
'use strict';
const MOST_BARS = 400;

// Sizes of the clients above; below, where labels are known, the share of each label in each client and the server.
function picture() {
  const {ids, group, train, labels, server} = report.data;
  const starts = ids.map((_, at) => at).filter(at => group[at] !== group[at - 1]);
  const sizes = starts.map((start, at) => `${(starts[at + 1] ?? ids.length) - start} ${group[start]}`).join(', ');
  const few = () => clientByClient({...report.data, sizes: train}, starts, 'train examples', byShare(1));
  const {data, layout} = !labels && ids.length > MOST_BARS ? manySizes(train) : few();
  const [least, most] = [Math.min(...train), Math.max(...train)];
  const alt = `Clients by group: ${sizes}; ${least} to ${most} train examples each; the server holds ${server}.`;
  return {data, layout, alt};
}

function manySizes(train) {
  const data = [{type: 'histogram', x: train, marker: {color: css('--c0')}}];
  return {data, layout: base({xaxis: axis('train examples of a client'), yaxis: axis('clients'), bargap: 0.05})};
}

// How a count becomes a color: the label's share of the holder's examples, up to `most`.
function byShare(most) {
  return {level: (count, total) => count / total, most, bar: {tickformat: '.0%'}};
}

function clientByClient({ids, group, sizes: held, labels, server_labels: server}, starts, what, color) {
  const places = ids.map((_, at) => at);
  const names = places.map(at => `${plain(ids[at])} (${group[at]}), ${held[at].toLocaleString('en')} ${what}`);
  const sizes = {
    type: 'bar', x: places, y: held, yaxis: 'y2', marker: {color: css('--muted')}, text: names, textposition: 'none',
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
  const colorbar = {thickness: 8, outlinewidth: 0, len: 0.8, y: 0, yanchor: 'bottom', ...color.bar};
  layout.coloraxis = {cmin: 0, cmax: color.most, colorscale: steps, colorbar};
  layout.yaxis = axis('label', {
    domain: [0, 0.76], autorange: 'reversed', showgrid: false, dtick: kinds > 20 ? 10 : 1, ticks: '',
  });
  if (!server) return {data: [sizes, heat(names, labels, color)], layout};
  layout.xaxis2 = axis('', {
    domain: [0.95, 1], anchor: 'y', tickvals: [0], ticktext: ['server'], showgrid: false, ticks: '',
  });
  return {data: [sizes, heat(names, labels, color), {...heat(['server'], [server], color), xaxis: 'x2'}], layout};
}

// A column for each holder of data, a row for each label.
function heat(names, counts, {level}) {
  const totals = counts.map(row => row.reduce((sum, count) => sum + count, 0) || 1);
  const kinds = counts[0].map((_, kind) => kind);
  const rows = each => kinds.map(kind => counts.map((row, at) => each(row[kind], at, kind)));
  return {
    type: 'heatmap', coloraxis: 'coloraxis', x: names.map((_, at) => at), y: kinds,
    z: rows((count, at) => level(count, totals[at])),
    text: rows((count, at, kind) => `${names[at]}<br>label ${kind}: ${count} examples`), hoverinfo: 'text',
    xgap: names.length <= 120 ? 1 : 0, ygap: 1,
  };
}

// Names of the groups above their first clients, one row higher where they would touch, and lines between groups.
function groupNames(group, starts, clients) {
  const wide = Math.min(innerWidth, document.documentElement.matches('.printing') ? PRINT_WIDTH : 1100);
  let end = -1, row = 0;
  const annotations = starts.map(start => {
    row = start / clients < end ? row + 1 : 0;
    end = start / clients + 80 / wide;
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

charts.data = picture;
