// What happens when somebody touches the page: drawing, sorting, copying, saving, changing theme, printing.
'use strict';
const PRINT_WIDTH = 680;
const NOTHING = 'Nothing to show for this choice.';

function draw(place, width) {
  const size = {height: place.clientHeight, width: width ?? place.clientWidth};
  const figure = charts[place.dataset.chart](place.dataset.group, size);
  place.setAttribute('aria-label', figure?.alt ?? NOTHING);
  if (!figure) {
    Plotly.purge(place);
    place.replaceChildren(Object.assign(document.createElement('p'), {className: 'empty', textContent: NOTHING}));
    return;
  }
  place.querySelector('p.empty')?.remove();
  const layout = {...figure.layout, ...size};
  Plotly.react(place, figure.data, layout, {displayModeBar: false, responsive: false});
  // The label says it all; the picture's parts would be read out one by one.
  const parts = document.querySelectorAll('svg.main-svg, #js-plotly-tester');
  for (const part of parts) part.setAttribute('aria-hidden', 'true');
}

function drawAll(kind, print) {
  for (const place of document.querySelectorAll('.chart')) {
    const share = place.closest('.triple') ? 3 : place.closest('.pair') ? 2 : 1;
    if (print) draw(place, (PRINT_WIDTH - 24 * (share - 1)) / share);
    else if (reached.has(place) && (!kind || place.dataset.chart === kind)) draw(place);
  }
}

// Charts are drawn when they come near, so that a large report opens at once.
const reached = new Set();
const watch = new IntersectionObserver(entries => {
  for (const {target, isIntersecting} of entries) {
    if (!isIntersecting) continue;
    reached.add(target);
    watch.unobserve(target);
    draw(target);
  }
}, {rootMargin: '400px'});

document.addEventListener('change', event => {
  const name = event.target.name ?? '';
  if (name) drawAll(name === 'line' ? undefined : name.split('-')[0]);
});

const button = document.getElementById('theme');

function themed() {
  button.textContent = isDark() ? 'Light' : 'Dark';
  button.setAttribute('aria-label', `Change to the ${isDark() ? 'light' : 'dark'} theme`);
  drawAll();
}

button.addEventListener('click', () => { turnTheme(); themed(); });
system.addEventListener('change', () => { followSystem(); themed(); });

// Sorting: the better figures first, then the other way round; rows without a figure stay last.
function sortBy(heading) {
  const table = heading.closest('table'), first = heading.querySelector('button').dataset.first;
  const turned = {ascending: 'descending', descending: 'ascending'};
  const order = heading.getAttribute('aria-sort') === first ? turned[first] : first;
  for (const other of table.querySelectorAll('[aria-sort]')) other.setAttribute('aria-sort', 'none');
  heading.setAttribute('aria-sort', order);
  const value = row => row.cells[heading.cellIndex].dataset.value, sign = order === 'ascending' ? 1 : -1;
  const compare = heading.cellIndex ? (a, b) => a - b : (a, b) => a.localeCompare(b);
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => (value(a) === '') - (value(b) === '') || sign * compare(value(a), value(b)));
  table.tBodies[0].append(...rows);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // no clipboard for pages from files in some browsers
    const field = Object.assign(document.createElement('textarea'), {value: text, className: 'unseen'});
    document.body.append(field);
    field.select();
    const done = document.execCommand('copy');
    field.remove();
    return done;
  }
}

async function copyCommand(pressed) {
  const done = await copy(pressed.previousElementSibling.textContent);
  pressed.textContent = done ? 'Copied' : 'Select it and press Ctrl+C';
  setTimeout(() => { pressed.textContent = 'Copy'; }, 2000);
  pressed.focus();
}

// As it is on the page, with a background, and in a picture of dots with enough of them for a slide.
function save(place, format) {
  const {chart, group} = place.dataset, size = {width: place.clientWidth, height: place.clientHeight};
  const figure = charts[chart](group, size);
  if (!figure) return;
  const showlegend = figure.legend ?? figure.layout.showlegend;
  const layout = {...figure.layout, paper_bgcolor: css('--paper'), showlegend};
  const filename = [chart, group].filter(Boolean).join('-').replaceAll(' ', '-');
  Plotly.downloadImage({data: figure.data, layout}, {format, ...size, scale: format === 'png' ? 3 : 1, filename});
}

document.addEventListener('click', event => {
  const pressed = event.target.closest('button');
  if (pressed?.closest('[aria-sort]')) sortBy(pressed.closest('[aria-sort]'));
  if (pressed?.matches('.copy')) copyCommand(pressed);
  if (pressed?.matches('.save')) save(pressed.closest('figure').querySelector('.chart'), pressed.value);
});

let waiting;
addEventListener('resize', () => { clearTimeout(waiting); waiting = setTimeout(() => drawAll(), 120); });
// Paper is light, has every chart, and shows the tables and commands that are folded on the screen.
const unfolded = [];
addEventListener('beforeprint', () => {
  unfolded.push(...document.querySelectorAll('details.repeat:not([open]), details.more:not([open])'));
  for (const part of unfolded) part.open = true;
  root.classList.add('printing');
  drawAll(undefined, true);
});
addEventListener('afterprint', () => {
  for (const part of unfolded.splice(0)) part.open = false;
  root.classList.remove('printing');
  drawAll();
});

themed();
for (const place of document.querySelectorAll('.chart')) watch.observe(place);
root.dataset.ready = 'yes';
