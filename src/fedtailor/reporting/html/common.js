// What all charts share: the report's numbers, the controls, the theme, axes and words.
// A chart is a function of (group, size) that returns {data, layout, alt}, where alt says in words
// what the picture shows, or null if there is nothing to show.
'use strict';
const report = JSON.parse(document.getElementById('report').textContent);
// The swatches in pieces.html.j2 have the same dashes, marks and number of colors.
const DASHES = ['solid', '7px,3px', '2px,3px', '9px,3px,2px,3px', '12px,4px'];
const MARKS = ['circle', 'square', 'diamond', 'triangle-up', 'triangle-down', 'cross'];
const NUM_COLORS = 8;
const charts = {};  // by kind; every script adds its own

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The value of a control: radio buttons or a list.
function getChoice(name) {
  const field = document.querySelector(`input[name="${name}"]:checked, select[name="${name}"]`);
  return field ? field.value : '';
}

// The lines of the report that are checked, with their indices.
function getShownLines() {
  const boxes = [...document.querySelectorAll('input[name="line"]')];
  const indices = boxes.filter(box => box.checked).map(box => Number(box.value));
  return indices.map(index => ({index, ...report.lines[index]}));
}

// Plotly reads a little HTML in its texts; names must show as they are written.
function escapeText(text) {
  return String(text).replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');
}

// Metrics: the headline metric, which may be in percent, and the loss.
function isPercent(metric) {
  return report.metric.percent && metric === report.metric.name;
}

function isHigherBetter(metric) {
  return report.metric.higher && metric === report.metric.name;
}

function toShownValue(value, metric) {
  if (value === null) return null;
  return isPercent(metric) ? 100 * value : value;
}

function toShownValues(values, metric) {
  return values.map(value => toShownValue(value, metric));
}

function nameWithUnit(metric) {
  return isPercent(metric) ? `${metric} in %` : metric;
}

function getLabel(line, stage) {
  return stage === 'after' ? line.label_after : line.label;
}

// Numbers and words.
function computeSum(values) {
  return values.reduce((sum, value) => sum + value, 0);
}

function computeMean(values) {
  return computeSum(values) / values.length;
}

// Three digits, or whole numbers from a thousand on.
function formatShort(value) {
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString('en');
  return String(Number(value.toPrecision(3)));
}

// A score as it is written beside a mark: tenths of a percent, or three digits.
function formatScore(value, metric) {
  return isPercent(metric) ? value.toFixed(1) : formatShort(value);
}

// Names that are too long for a chart end in an ellipsis; hovering shows them whole.
function shorten(text, maxLength = 24) {
  const isLong = text.length > maxLength;
  return escapeText(isLong ? `${text.slice(0, maxLength - 1)}\u2026` : text);
}

function isPasses(stage) {
  return /^\d/.test(stage);
}

function describeStage(stage) {
  if (stage === '1') return 'after 1 pass';
  return isPasses(stage) ? `after ${stage} passes` : stage;
}

// [size, name] of units, the largest first; formats.py has the same.
const UNITS = {
  round: [[1, '']],
  mb: [[1e6, 'TB'], [1e3, 'GB'], [1, 'MB']],
  flops: [[1e15, 'PFLOP'], [1e12, 'TFLOP'], [1e9, 'GFLOP'], [1e6, 'MFLOP']],
  steps: [[1, 'steps']],
  seconds: [[3600, 'h'], [60, 'min'], [1, 's']],
};

// [size, name] of the largest unit that fits the largest value; minutes and hours from five on.
function chooseUnit(quantity, largest) {
  const minCount = quantity === 'seconds' ? 5 : 1;
  const fits = ([size]) => largest >= size * minCount;
  return UNITS[quantity].find(fits) ?? UNITS[quantity].at(-1);
}

// The smallest and the largest value, a little apart where they are the same.
function getRange(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return high > low ? [low, high] : [low - 0.5, high + 0.5];
}

function widen([low, high], share) {
  const margin = (high - low) * share;
  return [low - margin, high + margin];
}

// An axis for values, logarithmic where losses differ by large factors, and the place of a value on
// it from 0 to 1. `lowMargin` and `highMargin` are shares of room at its ends.
function makeScale(values, metric, lowMargin = 0.04, highMargin = 0.04) {
  const [least, most] = getRange(values);
  const isLog = metric === 'loss' && least > 0 && most > 30 * least;
  const transform = isLog ? Math.log10 : value => value;
  const start = transform(least);
  const width = transform(most) - start;
  const range = [start - lowMargin * width, start + (1 + highMargin) * width];
  const getPlace = value => (transform(value) - range[0]) / (range[1] - range[0]);
  return {axis: isLog ? {range, type: 'log', dtick: 1} : {range}, getPlace};
}

// The color, dash and mark of a line; after the last color the others are turned by one.
function getStyle(index) {
  const turn = index + Math.floor(index / NUM_COLORS);
  return {
    turn,
    color: css(`--c${index % NUM_COLORS}`),
    dash: DASHES[turn % DASHES.length],
    mark: MARKS[turn % MARKS.length],
  };
}

function makeAxis(title, more) {
  return {
    title: {text: escapeText(title), standoff: 12, font: {size: 13, color: css('--soft')}},
    gridcolor: css('--grid'),
    linecolor: css('--axis'),
    tickcolor: css('--axis'),
    zeroline: false,
    ticks: 'outside',
    ticklen: 4,
    automargin: true,
    fixedrange: true,
    separatethousands: true,
    ...more,
  };
}

function makeLayout(more) {
  const font = {family: css('--sans'), size: 13, color: css('--ink')};
  return {
    paper_bgcolor: 'rgba(0,0,0,0)',
    plot_bgcolor: 'rgba(0,0,0,0)',
    showlegend: false,
    dragmode: false,
    font,
    margin: {l: 56, r: 16, t: 12, b: 48},
    hoverlabel: {bgcolor: css('--raised'), bordercolor: css('--axis'), font},
    ...more,
  };
}

// Charts in narrow windows have shorter names, and a legend below.
const NARROW = 480;

function isNarrow({width}) {
  return width < NARROW;
}

// A legend with two names in a row, in narrow charts of several lines.
function makeLegendBelow(size, numLines) {
  if (!isNarrow(size) || numLines < 2) return {};
  const numRows = Math.ceil(numLines / 2);
  return {
    showlegend: true,
    margin: {l: 56, r: 16, t: 12, b: 56 + 20 * numRows},
    legend: {
      orientation: 'h',
      entrywidth: 0.48,
      entrywidthmode: 'fraction',
      xref: 'container',
      x: 0,
      yref: 'container',
      y: 0,
      yanchor: 'bottom',
      font: {size: 12},
    },
  };
}

function makeLegendName(line, stage, size) {
  return shorten(getLabel(line, stage), isNarrow(size) ? 13 : 40);
}

// A vertical axis with a row for each name.
function makeRowAxis(names, size) {
  const maxLength = isNarrow(size) ? 14 : 24;
  return makeAxis('', {
    range: [names.length - 0.4, -0.6],
    tickvals: names.map((_, row) => row),
    ticktext: names.map(name => shorten(name, maxLength)),
    showgrid: false,
    ticks: '',
  });
}
