// What the page does: drawing, sorting, copying, saving, changing the theme, printing.
'use strict';
const PRINT_WIDTH = 680;
const PRINT_GAP = 24;
const NOTHING_TO_SHOW = 'Nothing to show for this choice.';

// Drawing. `width` is that of the place, unless it is given.
function draw(place, width = place.clientWidth) {
  const size = {height: place.clientHeight, width};
  const chart = charts[place.dataset.chart](place.dataset.group, size);
  place.setAttribute('aria-label', chart?.alt ?? NOTHING_TO_SHOW);
  if (!chart) {
    const message = document.createElement('p');
    message.className = 'empty';
    message.textContent = NOTHING_TO_SHOW;
    Plotly.purge(place);
    place.replaceChildren(message);
    return;
  }
  place.querySelector('p.empty')?.remove();
  const layout = {...chart.layout, ...size};
  Plotly.react(place, chart.data, layout, {displayModeBar: false, responsive: false});
  // The place's label says it all; screen readers would read the parts of the picture one by one.
  for (const part of document.querySelectorAll('svg.main-svg, #js-plotly-tester')) {
    part.setAttribute('aria-hidden', 'true');
  }
}

// Draw the charts that were reached, of one kind if it is given.
function drawReached(kind) {
  for (const place of document.querySelectorAll('.chart')) {
    const isOfKind = !kind || place.dataset.chart === kind;
    if (isOfKind && reached.has(place)) draw(place);
  }
}

function drawAllForPrint() {
  for (const place of document.querySelectorAll('.chart')) {
    const numColumns = place.closest('.pair') ? 2 : 1;
    draw(place, (PRINT_WIDTH - PRINT_GAP * (numColumns - 1)) / numColumns);
  }
}

// Charts are drawn when they come near, so that a large report opens at once.
const reached = new Set();
const observer = new IntersectionObserver(entries => {
  for (const {target, isIntersecting} of entries) {
    if (!isIntersecting) continue;
    reached.add(target);
    observer.unobserve(target);
    draw(target);
  }
}, {rootMargin: '400px'});

// A control's name begins with the kind of its charts; lines are in all of them.
document.addEventListener('change', event => {
  const name = event.target.name ?? '';
  if (name) drawReached(name === 'line' ? undefined : name.split('-')[0]);
});

const themeButton = document.getElementById('theme');

function applyTheme() {
  themeButton.textContent = isDark() ? 'Light' : 'Dark';
  themeButton.setAttribute('aria-label', `Change to the ${isDark() ? 'light' : 'dark'} theme`);
  drawReached();
}

themeButton.addEventListener('click', () => {
  toggleTheme();
  applyTheme();
});
system.addEventListener('change', () => {
  followSystem();
  applyTheme();
});

// Sort rows by a column: at first the better figures first, then the other way round. Rows without
// a figure stay last.
function sortBy(heading) {
  const table = heading.closest('table');
  const first = heading.querySelector('button').dataset.first;
  const opposite = first === 'ascending' ? 'descending' : 'ascending';
  const order = heading.getAttribute('aria-sort') === first ? opposite : first;
  for (const other of table.querySelectorAll('[aria-sort]')) {
    other.setAttribute('aria-sort', 'none');
  }
  heading.setAttribute('aria-sort', order);
  const sign = order === 'ascending' ? 1 : -1;
  const isName = heading.cellIndex === 0;
  const compareValues = (a, b) => (isName ? a.localeCompare(b) : a - b);
  const getValue = row => row.cells[heading.cellIndex].dataset.value;
  const compareRows = (row, other) => {
    const [a, b] = [getValue(row), getValue(other)];
    if (a === '' || b === '') return (a === '') - (b === '');
    return sign * compareValues(a, b);
  };
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort(compareRows));
}

// Copy a text; return whether it worked.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Some browsers have no clipboard for pages from files.
    const field = document.createElement('textarea');
    field.value = text;
    field.className = 'off-screen';
    document.body.append(field);
    field.select();
    const isCopied = document.execCommand('copy');
    field.remove();
    return isCopied;
  }
}

async function copyCommand(button) {
  const isCopied = await copy(button.previousElementSibling.textContent);
  button.textContent = isCopied ? 'Copied' : 'Select it and press Ctrl+C';
  setTimeout(() => { button.textContent = 'Copy'; }, 2000);
  button.focus();
}

// Save a chart as it is on the page, with a background and a legend; PNG files have enough pixels
// for a slide.
function save(place, format) {
  const {chart: kind, group} = place.dataset;
  const size = {width: place.clientWidth, height: place.clientHeight};
  const chart = charts[kind](group, size);
  if (!chart) return;
  const layout = {...chart.layout, paper_bgcolor: css('--paper')};
  layout.showlegend = chart.hasLegend ?? layout.showlegend;
  const filename = [kind, group].filter(Boolean).join('-').replaceAll(' ', '-');
  const scale = format === 'png' ? 3 : 1;
  Plotly.downloadImage({data: chart.data, layout}, {format, ...size, scale, filename});
}

document.addEventListener('click', event => {
  const button = event.target.closest('button');
  if (!button) return;
  const heading = button.closest('[aria-sort]');
  if (heading) sortBy(heading);
  if (button.matches('.copy')) copyCommand(button);
  if (button.matches('.save')) save(button.closest('figure').querySelector('.chart'), button.value);
});

let resizeTimer;
addEventListener('resize', () => {
  clearTimeout(resizeTimer);
  resizeTimer = setTimeout(() => drawReached(), 120);
});

// Printed pages are light, have every chart, and show the tables and commands that are folded on
// the screen.
const unfolded = [];
addEventListener('beforeprint', () => {
  const folded = 'details.repeat:not([open]), details.more:not([open])';
  unfolded.push(...document.querySelectorAll(folded));
  for (const part of unfolded) part.open = true;
  root.classList.add('printing');
  drawAllForPrint();
});
addEventListener('afterprint', () => {
  for (const part of unfolded.splice(0)) part.open = false;
  root.classList.remove('printing');
  drawReached();
});

applyTheme();
for (const place of document.querySelectorAll('.chart')) observer.observe(place);
root.dataset.ready = 'yes';
