// Each client compared with itself under local training.
'use strict';
const OUTCOMES = ['better', 'same', 'worse'];
const MIN_LABELED_SHARE = 12;  // percent; narrower parts of bars have no room for a number

charts.local = (place, size) => {
  const [kind, group] = place.split(' ');
  const metric = getChoice('local-metric');
  return kind === 'shares' ? drawOutcomes(group, metric, size) : drawMatches(group, metric, size);
};

// The shares of clients that do better, the same and worse. Counts are of all clients, also of
// those that are not drawn one by one.
function drawOutcomes(group, metric, size) {
  const rows = getShownLines()
    .filter(({index}) => index !== report.local)
    .map(line => countOutcomes(line, group, metric))
    .filter(({total}) => total);
  if (!rows.length) return null;
  const parts = rows.map(({line, shares}) => {
    const outcomes = OUTCOMES.map((name, index) => `${Math.round(shares[index])}% ${name}`);
    return `${line.label_after} ${outcomes.join(', ')}`;
  });
  return {
    data: OUTCOMES.map((_, outcome) => drawOutcome(rows, outcome)),
    alt: `${group} clients against local training, ${metric}: ${parts.join('; ')}.`,
    layout: makeLayout({
      barmode: 'stack',
      margin: {l: 8, r: 20, t: 32, b: 40},
      showlegend: true,
      legend: LEGEND_ABOVE,
      yaxis: makeRowAxis(rows.map(({line}) => line.label_after), size),
      xaxis: makeAxis('% of clients', {range: [0, 100.5], nticks: 6}),
    }),
  };
}

function countOutcomes(line, group, metric) {
  const counts = line.against_local[group]?.[metric] ?? [0, 0, 0];
  const total = computeSum(counts);
  return {line, counts, total, shares: counts.map(count => 100 * count / total)};
}

function drawOutcome(rows, outcome) {
  const name = OUTCOMES[outcome];
  const relation = name === 'same' ? 'the same as' : `${name} than`;
  const color = {better: css('--c0'), same: `${css('--muted')}59`, worse: css('--stop')}[name];
  const shares = rows.map(row => row.shares[outcome]);
  return {
    type: 'bar',
    orientation: 'h',
    name,
    x: shares,
    y: rows.map((_, row) => row),
    width: 0.62,
    marker: {color},
    text: shares.map(share => (share >= MIN_LABELED_SHARE ? `${Math.round(share)}%` : '')),
    textposition: 'inside',
    insidetextanchor: 'middle',
    constraintext: 'none',
    textangle: 0,
    insidetextfont: {color: name === 'same' ? css('--ink') : css('--paper')},
    hoverinfo: 'text',
    hovertext: rows.map(({line, counts, total}) => {
      const label = escapeText(line.label_after);
      return `${label}: ${counts[outcome]} of ${total} ${relation} with local training`;
    }),
  };
}

// The chosen method's clients one by one.
function drawMatches(group, metric, size) {
  const index = Number(getChoice('local-line'));
  const line = report.lines[index];
  const clients = matchClients(line, group, metric);
  if (!clients.length) return null;
  const sides = isHigherBetter(metric) ? ['better', 'worse'] : ['worse', 'better'];
  const [numBetter, , numWorse] = line.against_local[group][metric];
  const style = getStyle(index);
  const marks = {clients, color: style.color, symbol: 'circle', name: escapeText(line.label_after)};
  const axes = ['local', shorten(line.label_after)];
  return {
    ...drawSquare([marks], metric, axes, isNarrow(size) ? sides.slice(0, 1) : sides),
    alt: `${line.label_after}, ${metric} of ${group} clients: ${numBetter} do better and ` +
      `${numWorse} worse than with local training.`,
  };
}

// Clients with x, the score under local training with the same seed, and y, their own.
function matchClients(line, group, metric) {
  const own = line.clients[group];
  const local = report.lines[report.local].clients[group];
  if (!own || !local) return [];
  const key = `after.${metric}`;
  const getNames = columns => columns.ids.map((id, index) => `${columns.seed[index]} ${id}`);
  const localScores = new Map(getNames(local).map((name, index) => [name, local[key][index]]));
  const clients = getNames(own).map((name, index) => ({
    id: own.ids[index],
    seed: own.seed[index],
    x: toShownValue(localScores.get(name) ?? null, metric),
    y: toShownValue(own[key][index], metric),
  }));
  return clients.filter(({x, y}) => x !== null && y !== null);
}
