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

function extent(values) {
  const [low, high] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  return high > low ? [low, high] : [low - 0.5, high + 0.5];
}

function widened([low, high], share) {
  return [low - (high - low) * share, high + (high - low) * share];
}

function look(number) {
  const turn = number + Math.floor(number / COLOURS);
  return {colour: css(`--c${number % COLOURS}`), dash: DASHES[turn % DASHES.length], mark: MARKS[turn % MARKS.length]};
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
