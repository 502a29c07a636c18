// Each client against itself when it learns alone.
'use strict';
const OUTCOMES = ['better', 'same', 'worse'];

function alone(place, size) {
  const [kind, group] = place.split(' '), figure = chosen('alone-figure');
  return kind === 'shares' ? outcomes(group, figure, size) : together(group, figure, size);
}

// How many fare better, the same and worse; counts are of all clients, also of those who are not drawn one by one.
function outcomes(group, figure, size) {
  const found = shown().filter(({number}) => number !== report.alone).map(line => {
    const counts = line.against[group]?.[figure] ?? [0, 0, 0], all = counts.reduce((sum, count) => sum + count, 0);
    return {line, counts, all, shares: counts.map(count => 100 * count / all)};
  }).filter(({all}) => all);
  if (!found.length) return null;
  const words = found.map(({line, shares}) =>
    `${line.tuned} ${OUTCOMES.map((name, at) => `${Math.round(shares[at])}% ${name}`).join(', ')}`);
  return {
    data: OUTCOMES.map((_, at) => bars(found, at)),
    alt: `${group} clients against learning alone, ${figure}: ${words.join('; ')}.`,
    layout: base({
      barmode: 'stack', margin: {l: 8, r: 20, t: 32, b: 40}, showlegend: true, legend: ABOVE,
      yaxis: rowsOf(found.map(({line}) => line.tuned), size),
      xaxis: axis('% of clients', {range: [0, 100.5], nticks: 6}),
    }),
  };
}

function bars(found, at) {
  const color = [css('--c0'), `${css('--muted')}59`, css('--stop')][at];
  return {
    type: 'bar', orientation: 'h', name: OUTCOMES[at], x: found.map(({shares}) => shares[at]), width: 0.62,
    y: found.map((_, row) => row), marker: {color: color}, textposition: 'inside', insidetextanchor: 'middle',
    text: found.map(({shares}) => shares[at] >= 12 ? `${Math.round(shares[at])}%` : ''), constraintext: 'none',
    textangle: 0, insidetextfont: {color: at === 1 ? css('--ink') : css('--paper')}, hoverinfo: 'text',
    hovertext: found.map(({line, counts, all}) =>
      `${plain(line.tuned)}: ${counts[at]} of ${all} ${at === 1 ? 'the same as' : `${OUTCOMES[at]} than`} alone`),
  };
}

// The chosen method's clients one by one; the same client and seed in both.
function together(group, figure, size) {
  const number = +chosen('alone-line'), line = report.lines[number], pairs = matched(line, group, figure);
  if (!pairs.length) return null;
  const sides = higher(figure) ? ['better together', 'better alone'] : ['better alone', 'better together'];
  const [better, , worse] = line.against[group][figure];
  const marks = {pairs, color: look(number).color, symbol: 'circle', name: plain(line.tuned)};
  return {
    ...squared([marks], figure, ['alone', brief(line.tuned)], size.width < NARROW ? sides.slice(0, 1) : sides),
    alt: `${line.tuned}, ${figure} of ${group} clients: ${better} fare better and ${worse} worse than alone.`,
  };
}

function matched(line, group, figure) {
  const one = line.clients[group], other = report.lines[report.alone].clients[group], key = `after.${figure}`;
  if (!one || !other) return [];
  const named = from => from.ids.map((id, at) => JSON.stringify([from.seed[at], id]));
  const known = new Map(named(other).map((name, at) => [name, other[key][at]])), show = scaled(figure);
  const pairs = named(one).map((name, at) => (
    {x: show(known.get(name) ?? null), y: show(one[key][at]), id: one.ids[at], seed: one.seed[at]}));
  return pairs.filter(({x, y}) => x !== null && y !== null);
}

charts.alone = alone;
