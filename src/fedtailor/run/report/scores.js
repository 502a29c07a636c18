// Charts of scores: over rounds, over clients, and before against after.
'use strict';

function curves() {
  const [group, stage, figure, x] = ['group', 'stage', 'figure', 'x'].map(name => chosen(`curves-${name}`));
  const scored = shown().flatMap(line => {
    const points = line.curves[group]?.[stage]?.[figure];
    return points ? [{line, points}] : [];
  });
  if (!scored.length) return null;
  const byRound = x === 'round', title = byRound ? 'round' : 'MB sent, down and up together';
  const furthest = Math.max(...scored.map(({points}) => points[x].at(-1)));
  const last = scored.map(({line, points}) => `${label(line, stage)} ${short(scaled(figure)(points.mean.at(-1)))}`);
  return {
    data: scored.flatMap(({line, points}) => band(line, points, stage, figure, x)),
    layout: base({
      xaxis: axis(title, {
        rangemode: 'tozero', unifiedhovertitle: {text: 'round %{x}'}, ...(byRound && furthest <= 12 ? {dtick: 1} : {}),
      }),
      yaxis: axis(`${unit(figure)} (${group} clients, ${stage})`), hovermode: byRound ? 'x unified' : 'closest',
    }),
    alt: `${unit(figure)} of ${group} clients ${stage} personalising against ${title}. ` +
      `Last values: ${last.join('; ')}.`,
  };
}

// A line over seeds, and behind it the area from the lowest to the highest of them.
function band(line, points, stage, figure, x) {
  const {colour, dash, mark} = look(line.number), name = plain(label(line, stage)), across = points[x];
  const [middle, low, high] = [points.mean, points.low, points.high].map(values => values.map(scaled(figure)));
  const seeds = at => points.seeds[at] > 1
    ? ` (${short(low[at])} to ${short(high[at])}, ${points.seeds[at]} seeds)` : '';
  const area = {
    x: [...across, ...across.toReversed()], y: [...high, ...low.toReversed()], mode: 'lines', line: {width: 0},
    fill: 'toself', fillcolor: `${colour}26`, hoverinfo: 'skip', showlegend: false,
  };
  const curve = {
    x: across, y: middle, mode: 'lines+markers', name, hoverinfo: x === 'round' ? 'x+text' : 'text',
    line: {color: colour, dash, width: 2.2}, marker: {symbol: mark, size: 8, color: colour, maxdisplayed: 10},
    text: middle.map((value, at) => `${name}: ${short(value)}${seeds(at)}`),
  };
  return points.seeds.some(count => count > 1) ? [area, curve] : [curve];
}

function spread(group) {
  const [shape, stage, figure] = ['shape', 'stage', 'figure'].map(name => chosen(`spread-${name}`));
  const lines = shown();
  const tested = (line, which) => (line.clients[which]?.[`${stage}.${figure}`] ?? [])
    .filter(value => value !== null).map(scaled(figure)).sort((a, b) => a - b);
  const scored = lines.map(line => ({line, values: tested(line, group)})).filter(({values}) => values.length);
  if (!scored.length) return null;
  const range = extent(lines.flatMap(line => [...tested(line, 'local'), ...tested(line, 'new')]));
  const means = scored.map(({line, values}) => `${label(line, stage)} ${short(mean(values))}`);
  const trace = {ecdf, histogram, violin}[shape], yaxis = {
    ecdf: axis('share of clients', {range: [0, 1.03]}), histogram: axis('clients', {rangemode: 'tozero'}),
    violin: axis('', {autorange: 'reversed', showgrid: false}),
  }[shape];
  return {
    data: scored.map(({line, values}) => (
      {name: plain(label(line, stage)), ...trace(values, look(line.number), range, scored.length)})),
    layout: base({xaxis: axis(`${unit(figure)} (${stage})`, {range: widened(range, 0.03)}), yaxis}),
    alt: `How ${unit(figure)} ${stage} personalising differs over ${group} clients. Means: ${means.join('; ')}.`,
  };
}

function ecdf(values, {colour, dash, mark}) {
  return {
    x: [values[0], ...values], y: [0, ...values.map((_, at) => (at + 1) / values.length)], mode: 'lines+markers',
    line: {color: colour, dash, width: 2, shape: 'hv'}, marker: {symbol: mark, size: 7, color: colour, maxdisplayed: 8},
    hovertemplate: '%{y:.0%} at %{x:.4~g} or less',
  };
}

// As outlines, filled where they are few enough to be told apart.
function histogram(values, {colour, dash, mark}, [low, high], lines) {
  const bins = Math.min(20, Math.max(6, Math.ceil(Math.sqrt(values.length)))), width = (high - low) / bins;
  const counts = Array(bins).fill(0);
  for (const value of values) counts[Math.min(bins - 1, Math.floor((value - low) / width))] += 1;
  return {
    x: counts.map((_, at) => low + (at + 0.5) * width), y: counts, mode: 'lines+markers',
    fill: lines <= 3 ? 'tozeroy' : 'none', fillcolor: `${colour}1f`, hovertemplate: '%{y} clients around %{x:.4~g}',
    line: {color: colour, dash, width: 2, shape: 'hvh'},
    marker: {symbol: mark, size: 6, color: colour, maxdisplayed: 8},
  };
}

function violin(values, {colour, mark}) {
  return {
    type: 'violin', x: values, orientation: 'h', points: values.length <= 60 ? 'all' : false, pointpos: 0, jitter: 0.6,
    spanmode: 'hard', meanline: {visible: true}, line: {color: colour, width: 1.6}, fillcolor: `${colour}33`,
    marker: {symbol: mark, size: 4, opacity: 0.6}, hoverinfo: 'x+name',
  };
}

function pairs(kind) {
  const figure = chosen('pairs-figure'), line = report.lines[+chosen('pairs-line')], found = changes(figure, line);
  const sentence = found.length ? `${line.tuned}: ${found.map(each => inWords(each, figure)).join('; ')}.` : '';
  document.getElementById('pairs-readout').textContent = sentence;
  if (!found.length) return null;
  const {data, layout} = {marks: beforeAfter, gains: sortedGains}[kind](found, figure);
  const legend = {orientation: 'h', x: 0, y: 1.02, yanchor: 'bottom', bgcolor: 'rgba(0,0,0,0)'};
  const margin = {l: 56, r: 16, t: 40, b: 48};
  return {data, layout: base({legend, showlegend: true, margin, ...layout}), alt: sentence};
}

// For each group of clients the method's figures before and after, of those who could be tested.
function changes(figure, line) {
  return Object.entries(line.clients).map(([group, all]) => {
    const [first, then] = ['before', 'after'].map(stage => all[`${stage}.${figure}`]);
    const tested = all.ids.map((_, at) => at).filter(at => first[at] !== null && then[at] !== null);
    const [before, after] = [first, then].map(values => tested.map(at => scaled(figure)(values[at])));
    const names = tested.map(at => plain(all.ids[at]) + (all.seed[at] === null ? '' : `, seed ${plain(all.seed[at])}`));
    return {group, before, after, names, gains: after.map((value, at) => value - before[at])};
  }).filter(({names}) => names.length);
}

function inWords({group, gains}, figure) {
  const better = gains.filter(gain => higher(figure) ? gain > 0 : gain < 0).length, middle = mean(gains);
  const same = gains.filter(gain => gain === 0).length, sign = middle < 0 ? '\u2212' : '+';
  return `${better} of ${gains.length} ${group} clients are better after personalising, ${same} the same, ` +
    `mean change ${sign}${short(Math.abs(middle))}`;
}

function groupLook(group) {
  return group === 'new' ? {color: css('--c1'), symbol: 'diamond', dash: 'dash'}
    : {color: css('--c0'), symbol: 'circle-open', dash: 'solid'};
}

function beforeAfter(found, figure) {
  const range = widened(extent(found.flatMap(({before, after}) => [...before, ...after])), 0.04);
  const same = {
    x: range, y: range, mode: 'lines', hoverinfo: 'skip', showlegend: false,
    line: {color: css('--axis'), dash: 'dash', width: 1.2},
  };
  const marks = found.map(({group, before, after, names}) => {
    const {color, symbol} = groupLook(group);
    return {
      x: before, y: after, mode: 'markers', type: 'scatter', name: `${group} clients`, hoverinfo: 'text',
      marker: {symbol, size: 8, color, opacity: 0.85},
      text: names.map((name, at) => `${name}<br>before ${short(before[at])}, after ${short(after[at])}`),
    };
  });
  const [xaxis, yaxis] = ['before', 'after'].map(stage => axis(`${unit(figure)} (${stage})`, {range}));
  return {data: [same, ...marks], layout: {xaxis, yaxis}};
}

function sortedGains(found, figure) {
  const data = found.map(({group, gains, names}) => {
    const {color, symbol, dash} = groupLook(group);
    const order = gains.map((_, at) => at).sort((a, b) => gains[a] - gains[b]);
    return {
      x: order.map((_, rank) => (rank + 0.5) / order.length), y: order.map(at => gains[at]), mode: 'lines+markers',
      name: `${group} clients`, line: {color, dash, width: 2}, marker: {symbol, size: 7, color, maxdisplayed: 40},
      hoverinfo: 'text', text: order.map(at => `${names[at]}: ${short(gains[at])}`),
    };
  });
  const zero = {zeroline: true, zerolinecolor: css('--axis'), zerolinewidth: 1.2};
  const xaxis = axis('share of clients', {range: [0, 1.02], tickformat: '.0%'});
  return {data, layout: {xaxis, yaxis: axis(`change of ${unit(figure)}`, zero)}};
}

Object.assign(charts, {curves, spread, pairs});
