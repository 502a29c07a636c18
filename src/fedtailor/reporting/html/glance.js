// A row for each method: its means before and after personalizing and after a few passes, and those
// of every seed.
'use strict';

charts.glance = (group, size) => {
  const metric = getChoice('glance-metric');
  const lines = getShownLines();
  const rows = lines.map(line => collectStages(line, group, metric)).filter(row => row.after);
  if (!rows.length) return null;
  const sign = isHigherBetter(metric) ? 1 : -1;
  rows.sort((a, b) => sign * (b.after.mean - a.after.mean));
  const values = report.groups.flatMap(name => lines.flatMap(line => {
    return collectStages(line, name, metric).values;
  }));
  // Figures stand at the left of rows whose scores fall, and need room there.
  const hasFalling = rows.some(({before, after}) => before && before.mean > after.mean);
  const roomForFigures = isNarrow(size) ? 0.3 : 0.16;
  const scale = makeScale(values, metric, hasFalling ? roomForFigures : 0.06, 0.06);
  const words = rows.map(({line, before, after}) => {
    const first = before ? `${formatShort(before.mean)} before, ` : '';
    return `${line.label_after} ${first}${formatShort(after.mean)} after`;
  });
  return {
    data: rows.flatMap((row, index) => drawRow(row, index, metric)),
    alt: `${nameWithUnit(metric)} of ${group} clients: ${words.join('; ')}.`,
    layout: makeLayout({
      margin: {l: 8, r: 52, t: 4, b: 44},
      yaxis: makeRowAxis(rows.map(({line}) => line.label), size),
      xaxis: makeAxis(nameWithUnit(metric), {nticks: 6, ...scale.axis}),
    }),
  };
};

// The means of seeds at every stage that was scored; `values` has all of them.
function collectStages(line, group, metric) {
  const stages = {};
  for (const [stage, metrics] of Object.entries(line.seeds[group] ?? {})) {
    const seeds = toShownValues(metrics[metric], metric);
    if (seeds.length) stages[stage] = {seeds, mean: computeMean(seeds)};
  }
  const values = Object.values(stages).flatMap(({seeds}) => seeds);
  return {line, stages, before: stages.before, after: stages.after, values};
}

function drawRow({line, stages, before, after}, row, metric) {
  const {color, mark} = getStyle(line.index);
  const ends = [before, after].filter(Boolean);
  const passes = Object.keys(stages).filter(isPasses);
  const hollow = {symbol: mark, size: 10, color: css('--paper'), line: {color, width: 2}};
  const traces = [
    {
      x: ends.map(({mean}) => mean),
      y: ends.map(() => row),
      mode: 'lines',
      line: {color: `${color}66`, width: 3},
      hoverinfo: 'skip',
    },
    drawSeeds(ends.filter(({seeds}) => seeds.length > 1), row, color),
    drawMeans(line, stages, passes, row, {color, size: 6}),
  ];
  if (before) traces.push(drawMeans(line, stages, ['before'], row, hollow));
  traces.push(drawMeans(line, stages, ['after'], row, {color, symbol: mark, size: 12}));
  traces.push(writeFigure(stages, row, formatScore(after.mean, metric)));
  return traces;
}

function drawMeans(line, stages, names, row, marker) {
  const describe = name => {
    const {seeds, mean} = stages[name];
    const text = `${escapeText(line.label)}, ${describeStage(name)}: ${formatShort(mean)}`;
    return seeds.length > 1 ? `${text} (${seeds.map(formatShort).join(', ')})` : text;
  };
  return {
    x: names.map(name => stages[name].mean),
    y: names.map(() => row),
    mode: 'markers',
    marker,
    cliponaxis: false,
    hoverinfo: 'text',
    text: names.map(describe),
  };
}

// A thin stroke for each seed.
function drawSeeds(ends, row, color) {
  const seeds = ends.flatMap(end => end.seeds);
  return {
    x: seeds,
    y: seeds.map(() => row),
    mode: 'markers',
    hoverinfo: 'skip',
    marker: {symbol: 'line-ns', size: 13, line: {color, width: 1.4}},
  };
}

// The figure after personalizing, beyond everything else on the side of the score after it.
function writeFigure(stages, row, figure) {
  const {before, after} = stages;
  const isRising = !before || after.mean >= before.mean;
  const values = Object.entries(stages).flatMap(([name, {seeds, mean}]) => {
    return isPasses(name) ? [mean] : seeds;
  });
  return {
    x: [isRising ? Math.max(...values) : Math.min(...values)],
    y: [row],
    mode: 'text',
    text: [`\u2003<b>${figure}</b>\u2003`],
    textposition: isRising ? 'middle right' : 'middle left',
    hoverinfo: 'skip',
    cliponaxis: false,
  };
}
