// Figures for plotly.js, made from the report's numbers, the chosen controls and the theme. Each function returns
// {data, layout, alt}, where alt says in words what the picture shows, or null if there is nothing to show.
'use strict';
const report = JSON.parse(document.getElementById('report').textContent);
const DASHES = ['solid', '7px,3px', '2px,3px', '9px,3px,2px,3px', '12px,4px'];
const MARKS = ['circle', 'square', 'diamond', 'triangle-up', 'triangle-down', 'cross'];
const COLOURS = 8;

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const chosen = name => {
  const field = document.querySelector(`input[name="${name}"]:checked, select[name="${name}"]`);
  return field ? field.value : '';
};
const shown = () => [...document.querySelectorAll('input[name="line"]')]
  .filter(box => box.checked).map(box => ({number: +box.value, ...report.lines[+box.value]}));
// Plotly reads a little HTML in its texts; names must show as they are written.
const plain = words => String(words).replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');

const percent = figure => report.metric.percent && figure === report.metric.name;
const scaled = figure => value => value === null ? null : percent(figure) ? 100 * value : value;
const unit = figure => percent(figure) ? `${figure} in %` : figure;
const round = value => Math.abs(value) >= 1000 ? Math.round(value).toLocaleString('en') : String(+value.toPrecision(3));
const higher = figure => figure === report.metric.name && report.metric.higher;
const words = stage => `${stage} personalising`;
const label = (line, stage) => stage === 'after' ? line.tuned : line.label;
const extent = values => { const low = Math.min(...values), high = Math.max(...values); return high > low ? [low, high] : [low - 0.5, high + 0.5]; };
const mean = values => values.reduce((sum, value) => sum + value, 0) / values.length;

function look(number) {
  const turn = number + Math.floor(number / COLOURS);
  return {colour: css(`--c${number % COLOURS}`), dash: DASHES[turn % DASHES.length], mark: MARKS[turn % MARKS.length]};
}

function axis(title, more) {
  return {
    title: {text: plain(title), standoff: 12, font: {size: 13, color: css('--soft')}}, gridcolor: css('--grid'), zeroline: false, linecolor: css('--axis'),
    tickcolor: css('--axis'), ticks: 'outside', ticklen: 4, automargin: true, fixedrange: true, separatethousands: true, ...more,
  };
}

function base(more) {
  return {
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', showlegend: false, dragmode: false,
    font: {family: css('--sans'), size: 13, color: css('--ink')}, margin: {l: 56, r: 16, t: 12, b: 48},
    hoverlabel: {bgcolor: css('--raised'), bordercolor: css('--axis'), font: {family: css('--sans'), color: css('--ink')}},
    ...more,
  };
}

function curves() {
  const [group, stage, figure, x] = ['group', 'stage', 'figure', 'x'].map(name => chosen(`curves-${name}`));
  const data = [], last = [];
  let furthest = 0;
  for (const line of shown()) {
    const points = line.curves[group]?.[stage]?.[figure];
    if (!points) continue;
    const {colour, dash, mark} = look(line.number), across = points[x];
    const [middle, low, high] = [points.mean, points.low, points.high].map(values => values.map(scaled(figure)));
    if (Math.max(...points.seeds) > 1) data.push({
      x: [...across, ...across.toReversed()], y: [...high, ...low.toReversed()], fill: 'toself', fillcolor: colour + '26',
      line: {width: 0}, mode: 'lines', hoverinfo: 'skip', showlegend: false,
    });
    data.push({
      x: across, y: middle, mode: 'lines+markers', name: plain(label(line, stage)), hoverinfo: 'text',
      line: {color: colour, dash, width: 2.2}, marker: {symbol: mark, size: 8, color: colour, maxdisplayed: 10},
      text: middle.map((value, at) => `${plain(label(line, stage))}: ${round(value)}` + (points.seeds[at] > 1
        ? ` (${round(low[at])} to ${round(high[at])}, ${points.seeds[at]} seeds)` : '')),
    });
    furthest = Math.max(furthest, across.at(-1));
    last.push(`${label(line, stage)} ${round(middle.at(-1))}`);
  }
  const title = x === 'round' ? 'round' : 'MB sent, down and up together';
  const layout = base({
    xaxis: axis(title, {rangemode: 'tozero', ...(x === 'round' && furthest <= 12 ? {dtick: 1} : {})}), yaxis: axis(`${unit(figure)} (${group} clients, ${stage})`),
    hovermode: x === 'round' ? 'x unified' : 'closest',
  });
  return last.length ? {data, layout, alt: `${unit(figure)} of ${group} clients ${words(stage)} against ${title}. ` +
    `Last values: ${last.join('; ')}.`} : null;
}

function spread(group) {
  const [shape, stage, figure] = ['shape', 'stage', 'figure'].map(name => chosen(`spread-${name}`));
  const tested = (line, which) => (line.clients[which]?.[`${stage}.${figure}`] ?? []).filter(value => value !== null).map(scaled(figure));
  const every = shown().flatMap(line => ['local', 'new'].flatMap(which => tested(line, which)));
  const [low, high] = extent(every), pad = (high - low) * 0.03, means = [];
  const data = shown().flatMap(line => {
    const values = tested(line, group).sort((a, b) => a - b);
    if (!values.length) return [];
    means.push(`${label(line, stage)} ${round(mean(values))}`);
    return [{name: plain(label(line, stage)), ...{ecdf, histogram, violin}[shape](values, look(line.number), low, high)}];
  });
  const y = {ecdf: axis('share of clients', {range: [0, 1.03]}), histogram: axis('clients', {rangemode: 'tozero'}),
    violin: axis('', {autorange: 'reversed', showgrid: false})}[shape];
  const layout = base({xaxis: axis(`${unit(figure)} (${stage})`, {range: [low - pad, high + pad]}), yaxis: y});
  return data.length ? {data, layout, alt: `How ${unit(figure)} ${words(stage)} differs over ${group} clients. ` +
    `Means: ${means.join('; ')}.`} : null;
}

function ecdf(values, {colour, dash, mark}) {
  const steps = values.map((_, at) => (at + 1) / values.length);
  return {
    x: [values[0], ...values], y: [0, ...steps], mode: 'lines+markers', hovertemplate: '%{y:.0%} at %{x:.4~g} or less',
    line: {color: colour, dash, width: 2, shape: 'hv'}, marker: {symbol: mark, size: 7, color: colour, maxdisplayed: 8},
  };
}

function histogram(values, {colour, dash, mark}, low, high) {
  const bins = Math.min(20, Math.max(6, Math.ceil(Math.sqrt(values.length)))), width = (high - low) / bins;
  const counts = Array(bins).fill(0), centres = counts.map((_, at) => low + (at + 0.5) * width);
  for (const value of values) counts[Math.min(bins - 1, Math.floor((value - low) / width))] += 1;
  return {
    x: centres, y: counts, mode: 'lines+markers', fill: 'tozeroy', fillcolor: colour + '1f', hovertemplate: '%{y} clients around %{x:.4~g}',
    line: {color: colour, dash, width: 2, shape: 'hvh'}, marker: {symbol: mark, size: 6, color: colour, maxdisplayed: 8},
  };
}

function violin(values, {colour, mark}) {
  return {
    type: 'violin', x: values, orientation: 'h', points: values.length <= 60 ? 'all' : false, pointpos: 0, jitter: 0.6,
    spanmode: 'hard', meanline: {visible: true}, line: {color: colour, width: 1.6}, fillcolor: colour + '33',
    marker: {symbol: mark, size: 4, opacity: 0.6}, hoverinfo: 'x+name',
  };
}

// For each group of clients the chosen method's figures before and after, of those who could be tested.
function changes(figure, line) {
  return Object.entries(line.clients).map(([group, all]) => {
    const tested = all.ids.map((_, at) => at).filter(at => all[`after.${figure}`][at] !== null && all[`before.${figure}`][at] !== null);
    const [before, after] = ['before', 'after'].map(stage => tested.map(at => scaled(figure)(all[`${stage}.${figure}`][at])));
    const names = tested.map(at => plain(all.ids[at]) + (all.seed[at] === null ? '' : `, seed ${plain(all.seed[at])}`));
    return {group, before, after, names, gains: after.map((value, at) => value - before[at])};
  }).filter(found => found.names.length);
}

function said({group, gains}, figure) {
  const better = gains.filter(gain => higher(figure) ? gain > 0 : gain < 0).length, same = gains.filter(gain => gain === 0).length;
  const middle = mean(gains);
  return `${better} of ${gains.length} ${group} clients are better after personalising, ${same} the same, ` +
    `mean change ${middle < 0 ? '\u2212' : '+'}${round(Math.abs(middle))}`;
}

function pairs(kind) {
  const figure = chosen('pairs-figure'), line = report.lines[+chosen('pairs-line')], found = changes(figure, line);
  const sentence = `${line.tuned}: ${found.map(each => said(each, figure)).join('; ')}.`;
  document.getElementById('pairs-readout').textContent = found.length ? sentence : '';
  const {data, layout} = {marks: beforeAfter, gains: sortedGains}[kind](found, figure);
  const legend = {orientation: 'h', x: 0, y: 1.02, yanchor: 'bottom', bgcolor: 'rgba(0,0,0,0)'};
  return found.length ? {data, layout: base({...layout, legend, showlegend: true, margin: {l: 56, r: 16, t: 40, b: 48}}), alt: sentence} : null;
}

const groupLook = group => group === 'new' ? {color: css('--c1'), symbol: 'diamond', dash: 'dash'} : {color: css('--c0'), symbol: 'circle-open', dash: 'solid'};

function beforeAfter(found, figure) {
  const [low, high] = extent(found.flatMap(({before, after}) => [...before, ...after])), pad = (high - low) * 0.04, range = [low - pad, high + pad];
  const data = found.map(({group, before, after, names}) => {
    const {color, symbol} = groupLook(group);
    return {
      x: before, y: after, mode: 'markers', type: 'scatter', name: `${group} clients`, hoverinfo: 'text', marker: {symbol, size: 8, color, opacity: 0.85},
      text: names.map((name, at) => `${name}<br>before ${round(before[at])}, after ${round(after[at])}`),
    };
  });
  const same = {x: range, y: range, mode: 'lines', hoverinfo: 'skip', showlegend: false, line: {color: css('--axis'), dash: 'dash', width: 1.2}};
  return {data: [same, ...data], layout: {xaxis: axis(`${unit(figure)} (before)`, {range}), yaxis: axis(`${unit(figure)} (after)`, {range})}};
}

function sortedGains(found, figure) {
  const data = found.map(({group, gains, names}) => {
    const {color, symbol, dash} = groupLook(group), order = gains.map((_, at) => at).sort((a, b) => gains[a] - gains[b]);
    return {
      x: order.map((_, rank) => (rank + 0.5) / order.length), y: order.map(at => gains[at]), mode: 'lines+markers', name: `${group} clients`,
      line: {color, dash, width: 2}, marker: {symbol, size: 7, color, maxdisplayed: 40}, hoverinfo: 'text', text: order.map(at => `${names[at]}: ${round(gains[at])}`),
    };
  });
  const y = axis(`change of ${unit(figure)}`, {zeroline: true, zerolinecolor: css('--axis'), zerolinewidth: 1.2});
  return {data, layout: {xaxis: axis('share of clients', {range: [0, 1.02], tickformat: '.0%'}), yaxis: y}};
}

function cost(kind) {
  const lines = shown(), names = lines.map(line => plain(line.label)), colours = lines.map(line => look(line.number).colour);
  const trace = (key, more) => ({
    type: 'bar', orientation: 'h', x: lines.map(line => line.cost[key]), y: lines.map((_, at) => at), width: 0.62,
    marker: {color: colours, ...more}, hoverinfo: 'text', hovertext: lines.map((line, at) => `${names[at]}: ${round(line.cost[key])} ${key}`),
  });
  const hatched = {pattern: {shape: '/', size: 6, solidity: 0.45, fillmode: 'overlay', fgcolor: css('--paper')}};
  const data = kind === 'mb' ? [trace('down'), trace('up', hatched)] : [trace(kind)];
  const total = lines.map((_, at) => data.reduce((sum, bars) => sum + bars.x[at], 0));
  data.at(-1).text = total.map(round);
  Object.assign(data.at(-1), {textposition: 'outside', cliponaxis: false, constraintext: 'none'});
  const layout = base({
    barmode: 'stack', margin: {l: 8, r: 56, t: 4, b: 32}, xaxis: axis('', {nticks: 4, rangemode: 'tozero'}),
    yaxis: axis('', {tickvals: names.map((_, at) => at), ticktext: names, range: [names.length - 0.4, -0.6], showgrid: false, ticks: ''}),
  });
  return lines.length ? {data, layout, alt: `${kind}: ${lines.map((line, at) => `${line.label} ${round(total[at])}`).join('; ')}.`} : null;
}

function picture() {
  const {ids, group, train, labels, server_labels: server, server: held} = report.data, places = ids.map((_, at) => at);
  const starts = places.filter(at => group[at] !== group[at - 1]), share = counts => counts.map(count => count / (mean(counts) * counts.length || 1));
  const names = places.map(at => `${plain(ids[at])} (${group[at]}), ${train[at]} train examples`);
  const tall = labels ? [0.8, 1] : [0, 1], wide = server && labels ? [0, 0.93] : [0, 1];
  const few = ids.length <= 400 || labels;
  const bars = few ? {type: 'bar', x: places, y: train, marker: {color: css('--muted')}, text: names, textposition: 'none', hoverinfo: 'text', yaxis: 'y2'}
    : {type: 'histogram', x: train, marker: {color: css('--c0')}, yaxis: 'y2'};
  const data = [bars], heat = {type: 'heatmap', coloraxis: 'coloraxis', hoverinfo: 'text', xgap: ids.length <= 120 ? 1 : 0, ygap: 1};
  const layout = base({
    margin: {l: 48, r: 16, t: 44, b: 40}, bargap: 0.15,
    xaxis: axis(few ? 'clients' : 'train examples of a client', {domain: wide, showgrid: false, showticklabels: !few, ticks: '', anchor: labels ? 'y' : 'y2', ...(few ? {range: [-0.5, ids.length - 0.5]} : {})}),
    yaxis2: axis(few ? 'examples' : 'clients', {domain: tall, nticks: 4, anchor: 'x'}),
    coloraxis: {cmin: 0, cmax: 1, colorscale: [0, 0.25, 0.5, 1].map((at, step) => [at, css(`--heat${step}`)]), colorbar: {thickness: 8, tickformat: '.0%', outlinewidth: 0, len: 0.8, y: 0, yanchor: 'bottom', title: {text: ''}}},
  });
  if (few) marks(layout, group, starts, ids.length);
  if (labels) {
    const kinds = labels[0].map((_, kind) => kind), told = (name, counts) => kind => `${name}<br>label ${kind}: ${counts[kind]} examples`;
    const column = (who, counts, x) => ({x, y: kinds, z: kinds.map(kind => counts.map(each => share(each)[kind])), text: kinds.map(kind => counts.map((each, at) => told(who[at], each)(kind)))});
    data.push({...heat, ...column(names, labels, places)});
    layout.yaxis = axis('label', {domain: [0, 0.76], autorange: 'reversed', showgrid: false, dtick: kinds.length > 20 ? 10 : 1, ticks: ''});
    if (server) {
      data.push({...heat, ...column(['server'], [server], [0]), xaxis: 'x2'});
      layout.xaxis2 = axis('', {domain: [0.95, 1], anchor: 'y', tickvals: [0], ticktext: ['server'], showgrid: false, ticks: ''});
    }
  }
  const sizes = starts.map((start, at) => `${(starts[at + 1] ?? ids.length) - start} ${group[start]}`).join(', ');
  return {data, layout, alt: `Clients by group: ${sizes}; ${Math.min(...train)} to ${Math.max(...train)} train examples each; the server holds ${held}.`};
}

// Names of the groups above their clients, one row higher where they would touch.
function marks(layout, group, starts, clients) {
  let end = -1, row = 0;
  layout.annotations = starts.map(start => {
    row = start / clients < end ? row + 1 : 0;
    end = start / clients + 80 / Math.min(innerWidth, 1100);
    return {x: start - 0.5, y: 1, yref: 'paper', xanchor: 'left', yanchor: 'bottom', yshift: 4 + 16 * row, showarrow: false, text: group[start], font: {size: 12, color: css('--soft')}};
  });
  layout.shapes = starts.slice(1).map(start => ({type: 'line', x0: start - 0.5, x1: start - 0.5, y0: 0, y1: 1.02, yref: 'paper', line: {color: css('--ink'), width: 1.2}}));
}

const charts = {curves, spread, pairs, cost, data: picture};
