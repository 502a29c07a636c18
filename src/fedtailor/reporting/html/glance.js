// A row for each method: before and after personalizing, every seed, and what passes there are between.
'use strict';

function glance(group, size) {
  const figure = chosen('glance-figure'), lines = shown();
  const found = lines.map(line => levels(line, group, figure)).filter(each => each.after);
  if (!found.length) return null;
  found.sort((a, b) => (b.after.mean - a.after.mean) * (higher(figure) ? 1 : -1));
  const everywhere = report.groups.flatMap(name => lines.flatMap(line => levels(line, name, figure).every));
  const falling = found.some(({before, after}) => before?.mean > after.mean);
  const scale = scaleOf(everywhere, figure, falling ? (size.width < NARROW ? 0.3 : 0.16) : 0.06, 0.06);
  const words = found.map(({line, before, after}) =>
    `${line.tuned} ${before ? `${short(before.mean)} before, ` : ''}${short(after.mean)} after`);
  return {
    data: found.flatMap((each, at) => row(each, at, figure)),
    alt: `${unit(figure)} of ${group} clients: ${words.join('; ')}.`,
    layout: base({
      margin: {l: 8, r: 52, t: 4, b: 44}, yaxis: rowsOf(found.map(({line}) => line.label), size),
      xaxis: axis(unit(figure), {nticks: 6, ...scale.axis}),
    }),
  };
}

// The means of seeds at every stage that was scored.
function levels(line, group, figure) {
  const stages = Object.entries(line.seeds[group] ?? {}).filter(([, found]) => found[figure]?.length);
  const all = Object.fromEntries(stages.map(([stage, found]) => {
    const seeds = found[figure].map(scaled(figure));
    return [stage, {seeds, mean: mean(seeds)}];
  }));
  return {line, all, before: all.before, after: all.after, every: Object.values(all).flatMap(({seeds}) => seeds)};
}

function row({line, all, before, after}, at, figure) {
  const {color, mark} = look(line.number), ends = [before, after].filter(Boolean);
  const said = ([stage, {seeds, mean: middle}]) => `${plain(line.label)}, ${when(stage)}: ${short(middle)}` +
    (seeds.length > 1 ? ` (${seeds.map(short).join(', ')})` : '');
  const dots = (entries, marker) => ({
    x: entries.map(([, {mean: middle}]) => middle), y: entries.map(() => at), mode: 'markers', hoverinfo: 'text',
    text: entries.map(said), marker: {color: color, ...marker}, cliponaxis: false,
  });
  const hollow = {symbol: mark, size: 10, color: css('--paper'), line: {color: color, width: 2}};
  return [
    {
      x: ends.map(each => each.mean), y: ends.map(() => at), mode: 'lines', line: {color: `${color}66`, width: 3},
      hoverinfo: 'skip',
    },
    strokes(ends.filter(({seeds}) => seeds.length > 1), at, color),
    dots(Object.entries(all).filter(([stage]) => /^\d/.test(stage)), {size: 6}),
    ...(before ? [dots([['before', before]], hollow)] : []), dots([['after', after]], {symbol: mark, size: 12}),
    figureBeside({all, before, after}, at, written(after.mean, figure)),
  ];
}

function strokes(ends, at, color) {
  const seeds = ends.flatMap(each => each.seeds);
  return {
    x: seeds, y: seeds.map(() => at), mode: 'markers', hoverinfo: 'skip',
    marker: {symbol: 'line-ns', size: 13, line: {color: color, width: 1.4}},
  };
}

// On the side where nothing else is.
function figureBeside({all, before, after}, at, words) {
  const rising = !before || after.mean >= before.mean;
  const taken = Object.entries(all).flatMap(([stage, {seeds, mean: middle}]) => /^\d/.test(stage) ? [middle] : seeds);
  return {
    x: [rising ? Math.max(...taken) : Math.min(...taken)], y: [at], mode: 'text', text: [`\u2003<b>${words}</b>\u2003`],
    textposition: rising ? 'middle right' : 'middle left', hoverinfo: 'skip', cliponaxis: false,
  };
}

charts.glance = glance;
