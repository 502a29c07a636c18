// What all charts share: the report's numbers, the chosen controls, the theme, axes and words.
// A chart is a function that returns {data, layout, alt}, where alt says in words what the picture shows, or null if
// there is nothing to show.
'use strict';
const report = JSON.parse(document.getElementById('report').textContent);
const DASHES = ['solid', '7px,3px', '2px,3px', '9px,3px,2px,3px', '12px,4px'];
const MARKS = ['circle', 'square', 'diamond', 'triangle-up', 'triangle-down', 'cross'];
const COLOURS = 8;
const charts = {};  // by the name of their place; every script adds its own

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function chosen(name) {
  const field = document.querySelector(`input[name="${name}"]:checked, select[name="${name}"]`);
  return field ? field.value : '';
}

function shown() {
  const boxes = [...document.querySelectorAll('input[name="line"]')].filter(box => box.checked);
  return boxes.map(box => ({number: +box.value, ...report.lines[+box.value]}));
}

// Plotly reads a little HTML in its texts; names must show as they are written.
const plain = words => String(words).replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');

const percent = figure => report.metric.percent && figure === report.metric.name;
const higher = figure => report.metric.higher && figure === report.metric.name;
const scaled = figure => value => value === null ? null : percent(figure) ? 100 * value : value;
const unit = figure => percent(figure) ? `${figure} in %` : figure;
const label = (line, stage) => stage === 'after' ? line.tuned : line.label;

const mean = values => values.reduce((sum, value) => sum + value, 0) / values.length;
const short = value => Math.abs(value) >= 1000 ? Math.round(value).toLocaleString('en') : String(+value.toPrecision(3));

// Charts in narrow windows have shorter names and a legend below; in others names stand beside the page's boxes.
const NARROW = 480;

// Two names to a row.
function legendBelow({width}, lines) {
  if (width >= NARROW || lines < 2) return {};
  const below = {xref: 'container', x: 0, yref: 'container', y: 0, yanchor: 'bottom', font: {size: 12}};
  const margin = {l: 56, r: 16, t: 12, b: 56 + 20 * Math.ceil(lines / 2)};
  return {showlegend: true, margin, legend: {orientation: 'h', entrywidth: 0.48, entrywidthmode: 'fraction', ...below}};
}

const legendName = (line, stage, {width}) => brief(label(line, stage), width < NARROW ? 13 : 40);

// A row for each of the names.
function rowsOf(names, {width}) {
  const ticktext = names.map(name => brief(name, width < NARROW ? 14 : 24)), tickvals = names.map((_, at) => at);
  return axis('', {range: [names.length - 0.4, -0.6], tickvals, ticktext, showgrid: false, ticks: ''});
}

// Names that are too long for a chart end in an ellipsis; hovering shows them whole.
const brief = (words, most = 24) => plain(words.length > most ? `${words.slice(0, most - 1)}\u2026` : words);
const when = stage => stage === '1' ? 'after 1 pass' : /^\d/.test(stage) ? `after ${stage} passes` : stage;

const UNITS = {
  mb: [[1e6, 'TB'], [1e3, 'GB'], [1, 'MB']], steps: [[1, 'steps']], round: [[1, '']],
  flops: [[1e15, 'PFLOP'], [1e12, 'TFLOP'], [1e9, 'GFLOP'], [1e6, 'MFLOP']],
  seconds: [[3600, 'h'], [60, 'min'], [1, 's']],
};

// [how many make one, name] of the largest unit that the largest value fills; a minute counts from five of them on.
function unitOf(kind, most) {
  const least = kind === 'seconds' ? 5 : 1;
  return UNITS[kind].find(([size]) => most >= size * least) ?? UNITS[kind].at(-1);
}

// A figure as it is written beside a mark: tenths of a per cent, or three digits.
const written = (value, figure) => percent(figure) ? value.toFixed(1) : short(value);

function extent(values) {
  const [low, high] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  return high > low ? [low, high] : [low - 0.5, high + 0.5];
}

function widened([low, high], share) {
  return [low - (high - low) * share, high + (high - low) * share];
}

// An axis for values, by factors where losses differ by many of them; `low` and `high` are shares of room at its ends.
function scaleOf(values, figure, low = 0.04, high = 0.04) {
  const [least, most] = extent(values), log = figure === 'loss' && least > 0 && most > 30 * least;
  const turned = log ? Math.log10 : value => value, from = turned(least), wide = turned(most) - from;
  const range = [from - low * wide, from + (1 + high) * wide];
  const place = value => (turned(value) - range[0]) / (range[1] - range[0]);
  return {axis: {range, ...(log ? {type: 'log', dtick: 1} : {})}, place};
}

function look(number) {
  const turn = number + Math.floor(number / COLOURS);
  const [dash, mark] = [DASHES, MARKS].map(kinds => kinds[turn % kinds.length]);
  return {turn, dash, mark, color: css(`--c${number % COLOURS}`)};
}

function axis(title, more) {
  return {
    title: {text: plain(title), standoff: 12, font: {size: 13, color: css('--soft')}},
    gridcolor: css('--grid'), linecolor: css('--axis'), tickcolor: css('--axis'), zeroline: false,
    ticks: 'outside', ticklen: 4, automargin: true, fixedrange: true, separatethousands: true, ...more,
  };
}

function base(more) {
  const font = {family: css('--sans'), size: 13, color: css('--ink')};
  return {
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', showlegend: false, dragmode: false, font,
    margin: {l: 56, r: 16, t: 12, b: 48},
    hoverlabel: {bgcolor: css('--raised'), bordercolor: css('--axis'), font}, ...more,
  };
}
