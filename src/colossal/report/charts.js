'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const holder = document.getElementById('charts'), controls = document.getElementById('controls');
const several = data.runs.length > 1;
const view = {x: 'step', log: false, smooth: 0.3, hide: new Set()};
const kHeight = 250, kTop = 10, kBottom = 38;

// --- the view: in the address and in the controls
function readView() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  view.x = ['step', 'time', 'tokens'].includes(wanted.get('x')) ? wanted.get('x') : 'step';
  view.log = wanted.get('log') === '1';
  const smooth = parseFloat(wanted.get('smooth'));
  view.smooth = smooth >= 0 && smooth <= 0.99 ? smooth : 0.3;
  const hidden = (wanted.get('hide') || '').split(',').map(n => parseInt(n, 10) - 1);
  view.hide = new Set(hidden.filter(run => run >= 0 && run < data.runs.length));
  for (const input of document.querySelectorAll('input[name=x]')) input.checked = input.value === view.x;
  document.getElementById('log').checked = view.log;
  document.getElementById('smooth').value = view.smooth;
  for (const input of document.querySelectorAll('input[name=run]')) input.checked = !view.hide.has(+input.value);
}
function keepView() {
  let hash = `#x=${view.x}&log=${view.log ? 1 : 0}&smooth=${view.smooth}`;
  if (view.hide.size) hash += `&hide=${[...view.hide].map(run => run + 1).sort((a, b) => a - b).join(',')}`;
  try { history.replaceState(null, '', hash); } catch (error) { location.hash = hash; }
}

// --- numbers as text
function short(value) {
  if (typeof value !== 'number') return value;
  const size = Math.abs(value);
  if (size >= 1e12 || (size > 0 && size < 1e-3)) return trim(value.toExponential(2));
  if (size >= 1e9) return trim((value / 1e9).toPrecision(4)) + 'B';
  if (size >= 1e6) return trim((value / 1e6).toPrecision(4)) + 'M';
  if (size >= 1e4) return trim((value / 1e3).toPrecision(4)) + 'k';
  return trim(value.toPrecision(4));
}
function trim(text) {
  const [digits, exponent] = text.split('e');
  const mantissa = digits.includes('.') ? digits.replace(/0+$/, '').replace(/\.$/, '') : digits;
  return exponent === undefined ? mantissa : `${mantissa}e${exponent.replace('+', '')}`;
}
function bytesText(value, fine) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  for (; Math.abs(value) >= 1024 && unit < units.length - 1; unit++) value /= 1024;
  const digits = fine ? 3 : unit === 0 || value >= 100 ? 0 : 1;
  return `${trim(value.toFixed(digits))} ${units[unit]}`;
}
// `fine`: with more digits, for ticks that lie close together.
function valueText(value, unit, fine) {
  if (typeof value !== 'number') return value;
  if (unit === 'bytes') return bytesText(value, fine);
  if (fine && unit === 'number') return trim(value.toPrecision(8));
  if (unit === 'share') return short(Math.round(value * 1e4) / 100) + ' %';
  if (unit === 'seconds') return value !== 0 && Math.abs(value) < 1 ? short(value * 1e3) + ' ms' : short(value) + ' s';
  return short(value);
}
const timeUnits = [[86400, 'days'], [3600, 'h'], [60, 'min'], [1, 's']];
function xUnit(high) {
  if (view.x !== 'time') return [1, view.x];
  return timeUnits.find(([size]) => high >= 2 * size) || [1, 's'];
}
function xText(x) {
  if (view.x !== 'time') return `${view.x} ${view.x === 'tokens' ? short(x) : x}`;
  const [size, name] = xUnit(x);
  return `time ${short(x / size)} ${name}`;
}

// --- scales
function roundTicks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough)), lead = rough / power;
  const step = power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10), ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step && ticks.length < 50; i++)
    ticks.push(+(i * step).toPrecision(12));
  return ticks;
}
function byteTicks(low, high, count) {
  const step = 2 ** Math.max(0, Math.ceil(Math.log2(Math.max((high - low) / count, 1)))), ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high && ticks.length < 50; tick += step) ticks.push(tick);
  return ticks;
}
function logTicks(low, high, count, unit) {
  const decades = Math.log10(high / low);
  if (decades < 1) return (unit === 'bytes' ? byteTicks : roundTicks)(low, high, count).filter(tick => tick > 0);
  if (unit === 'bytes') {
    const ticks = [], every = Math.ceil(Math.log2(high / low) / count);
    for (let e = Math.ceil(Math.log2(low)); e <= Math.log2(high); e += every) ticks.push(2 ** e);
    return ticks;
  }
  const ticks = [], every = Math.max(1, Math.ceil(decades / (2 * count)));
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += every)
    for (const lead of decades > 3 ? [1] : [1, 2, 5]) ticks.push(lead * 10 ** e);
  return ticks.filter(tick => tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9));
}
function yScale(values, chart, log, top, bottom) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low > high) return null;
  if (log) {
    const room = Math.max(1.01, (high / low) ** 0.05);
    low /= room; high *= room;
    const size = Math.log(high / low);
    return {low, high, at: value => bottom - Math.log(value / low) / size * (bottom - top)};
  }
  if (chart.zero) { low = Math.min(low, 0); high = Math.max(high, 0); }
  let room = 0.06 * (high - low);
  if (room === 0) room = high === 0 ? 1 : 0.1 * Math.abs(high);
  if (!chart.zero && chart.unit !== 'number') room = Math.max(room, 0.01 * Math.abs(high));  // noise stays small
  low = chart.zero && low >= 0 ? 0 : low - room;
  high += room;
  return {low, high, at: value => bottom - (value - low) / (high - low) * (bottom - top)};
}

// --- curves: {name, style, x, y, ends}
// The mean around each point, weighted by exp(-distance / width) on both sides, in two passes. Curves of different
// density are smoothed alike, because the width is a share of the x axis.
function smoothed(x, y, n, width) {
  const count = x.length, out = new Array(count), ahead = new Float64Array(count), weights = new Float64Array(count);
  for (let i = count - 1, sum = 0, weight = 0; i >= 0; i--) {
    const fade = i + 1 < count ? Math.exp(-(x[i + 1] - x[i]) / width) : 0;
    sum *= fade; weight *= fade;
    ahead[i] = sum; weights[i] = weight;
    if (typeof y[i] === 'number') { sum += n[i] * y[i]; weight += n[i]; }
  }
  for (let i = 0, sum = 0, weight = 0; i < count; i++) {
    const fade = i > 0 ? Math.exp(-(x[i] - x[i - 1]) / width) : 0;
    sum *= fade; weight *= fade;
    if (typeof y[i] !== 'number') { out[i] = y[i]; continue; }
    sum += n[i] * y[i]; weight += n[i];
    out[i] = (sum + ahead[i]) / (weight + weights[i]);
  }
  return out;
}
function curveOf(run, series, chart, xRange) {
  const rows = data.runs[run].rows[view.x];
  const raw = {x: series.i.map(i => rows[i]), y: series.y};
  const isSmooth = chart.smooth && view.smooth > 0 && series.i.length > 2;
  if (!isSmooth) return {raw: null, line: raw};
  const from = series.s ? {x: series.s.i.map(i => rows[i]), y: series.s.y, n: series.s.n}
                        : {...raw, n: new Array(raw.y.length).fill(1)};
  const width = Math.max(0.2 * view.smooth ** 2 * xRange, Number.MIN_VALUE);
  return {raw, line: {x: from.x, y: smoothed(from.x, from.y, from.n, width)}};
}
function curvesOf(figure) {
  const chart = figure.chart, sources = figure.sources.filter(source => !view.hide.has(source.run));
  let low = Infinity, high = -Infinity;
  for (const source of sources) {
    const rows = data.runs[source.run].rows[view.x], i = source.series.i;
    if (!i.length) continue;
    low = Math.min(low, rows[i[0]]); high = Math.max(high, rows[i[i.length - 1]]);
  }
  if (low > high) return {curves: [], low: 0, high: 1};
  const curves = sources.map(source => ({...source, ...curveOf(source.run, source.series, chart, high - low)}));
  if (low === high) { low -= 1; high += 1; }
  return {curves, low, high};
}

// --- drawing
function add(parent, tag, attributes, text) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const name in attributes) element.setAttribute(name, attributes[name]);
  if (text !== undefined) element.textContent = text;
  parent.appendChild(element);
  return element;
}
// Writes a text and moves it until it is inside the drawing; returns its box.
function label(svg, style, x, y, anchor, text, width) {
  const element = add(svg, 'text', {class: style, x: x.toFixed(1), y: y.toFixed(1), 'text-anchor': anchor}, text);
  const box = element.getBBox();
  const move = Math.max(0, 1 - box.x) - Math.max(0, box.x + box.width - (width - 1));
  if (move) element.setAttribute('x', (x + move).toFixed(1));
  return {element, left: box.x + move, right: box.x + box.width + move};
}
// The labels of the y axis, which decide where the frame begins.
function drawYLabels(svg, chart, log, yAxis, width) {
  const lines = Math.floor((kHeight - kBottom - kTop) / 42);
  const ticks = log ? logTicks(yAxis.low, yAxis.high, lines, chart.unit)
    : chart.unit === 'bytes' ? byteTicks(yAxis.low, yAxis.high, lines) : roundTicks(yAxis.low, yAxis.high, lines);
  const fine = new Set(ticks.map(tick => valueText(tick, chart.unit))).size < ticks.length;
  const made = ticks.map(tick => label(svg, 'tick', 1, yAxis.at(tick) + 4, 'start', valueText(tick, chart.unit, fine),
                                       width));
  const left = Math.max(44, ...made.map(one => one.right + 8));
  for (const one of made) one.element.setAttribute('x', (left - 7 - (one.right - one.left)).toFixed(1));
  return {ticks, left};
}
function drawAxes(svg, frame, range, ticks, yAxis) {
  const {width, left, right, bottom} = frame;
  for (const tick of ticks) {
    const y = yAxis.at(tick).toFixed(1);
    add(svg, 'line', {class: 'grid', x1: left, x2: right, y1: y, y2: y});
  }
  const [unit, name] = xUnit(range.high);
  let free = -Infinity;
  for (const tick of roundTicks(range.low / unit, range.high / unit, Math.max(2, Math.floor((right - left) / 64)))) {
    if (view.x !== 'time' && tick !== Math.floor(tick)) continue;  // steps and tokens are whole
    const made = label(svg, 'tick xtick', frame.x(tick * unit), bottom + 16, 'middle', short(tick), width);
    if (made.left < free) made.element.remove(); else free = made.right + 6;
  }
  add(svg, 'line', {class: 'axis', x1: left, x2: right, y1: bottom, y2: bottom});
  label(svg, 'name', right, kHeight - 4, 'end', view.x === 'time' ? `training time (${name})` : name, width);
}
// A path for each stretch without gaps, in one element; a single point is a dot, a value that is not finite a mark.
function drawLine(svg, line, curve, style, frame, yAxis, log) {
  let path = '', length = 0, points = 0, last = null, marked = -Infinity;
  const dots = [], end = i => { if (length === 1) dots.push(i - 1); length = 0; };
  for (let i = 0; i < line.x.length; i++) {
    const value = line.y[i], x = frame.x(line.x[i]);
    if (typeof value !== 'number' || (log && value <= 0)) {
      end(i);
      if (typeof value === 'number' || style === 'raw' || x < marked + 3) continue;
      add(svg, 'path', {class: 'bad', d: `M${(x - 4).toFixed(1)} ${frame.bottom}h8l-4 -7z`});
      marked = x;
      continue;
    }
    path += `${length++ ? 'L' : 'M'}${x.toFixed(1)} ${yAxis.at(value).toFixed(1)}`;
    points++;
    last = {x, y: yAxis.at(value)};
  }
  end(line.x.length);
  add(svg, 'path', {class: `line ${style}`, d: path, style: curve.style, 'data-run': curve.run + 1,
                    'data-name': curve.name, 'data-points': points});
  for (const i of dots)
    add(svg, 'circle', {class: style, r: 3, style: curve.style, cx: frame.x(line.x[i]).toFixed(1),
                        cy: yAxis.at(line.y[i]).toFixed(1)});
  return last;
}
// The number of each curve at its end, moved apart where several curves end close together.
function drawNumbers(svg, ends, frame) {
  const places = new Map();
  for (const end of ends) {
    const place = Math.round(end.x / 16);
    places.set(place, [...(places.get(place) || []), end]);
  }
  for (const group of places.values()) {
    group.sort((a, b) => a.y - b.y);
    let free = kTop + 4;
    for (const end of group) { end.at = Math.max(end.y, free); free = end.at + 13; }
    free = frame.bottom - 2;
    for (const end of group.reverse()) { end.at = Math.min(end.at, free); free = end.at - 13; }
    for (const end of group)
      label(svg, 'number', end.x + 5, end.at + 4, 'start', end.number, frame.width).element
        .setAttribute('style', end.style);
  }
}
function draw(figure) {
  const svg = figure.svg, chart = figure.chart, log = view.log && chart.log;
  svg.replaceChildren();
  const width = Math.max(240, Math.floor(figure.element.clientWidth - 28));
  svg.setAttribute('viewBox', `0 0 ${width} ${kHeight}`);
  const found = curvesOf(figure), numbered = figure.numbered && found.curves.length > 1;
  const right = width - (numbered ? 26 : 12), bottom = kHeight - kBottom;
  const values = [];
  let bad = 0, hidden = 0;
  for (const curve of found.curves) {
    bad += curve.series.bad || 0;
    for (const value of curve.raw ? [...curve.raw.y, ...curve.line.y] : curve.line.y) {
      if (typeof value !== 'number') continue;
      if (log && value <= 0) hidden++; else values.push(value);
    }
  }
  const yAxis = yScale(values, chart, log, kTop, bottom);
  const notes = bad ? [`${bad} ${bad === 1 ? 'value is' : 'values are'} not finite`] : [];
  if (hidden) notes.push('values of 0 and below are not drawn');
  figure.note.textContent = notes.join('; ');
  figure.shown = null;
  if (!yAxis) {
    const nothing = found.curves.length ? 'no value to show' : 'every run is hidden';
    label(svg, 'name', width / 2, kHeight / 2, 'middle', nothing, width);
    return;
  }
  const {ticks, left} = drawYLabels(svg, chart, log, yAxis, width);
  const frame = {width, left, right, bottom, low: found.low, high: found.high,
                 x: x => left + (x - found.low) / (found.high - found.low) * (right - left)};
  drawAxes(svg, frame, found, ticks, yAxis);
  const ends = [];
  for (const curve of found.curves)
    if (curve.raw && !figure.crowded) drawLine(svg, curve.raw, curve, 'raw', frame, yAxis, log);
  for (const curve of found.curves) {
    const last = drawLine(svg, curve.line, curve, 'main', frame, yAxis, log);
    if (numbered && last && curve.number) ends.push({...last, number: curve.number, style: curve.style});
  }
  drawNumbers(svg, ends, frame);
  const cursor = add(svg, 'line', {class: 'cursor', y1: kTop, y2: bottom, x1: -9, x2: -9});
  figure.shown = {curves: found.curves, frame, cursor};
}

// --- values under the pointer
function nearest(xs, wanted) {
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < wanted) low = middle + 1; else high = middle;
  }
  return low > 0 && wanted - xs[low - 1] < xs[low] - wanted ? low - 1 : low;
}
function point(figure, clientX) {
  if (!figure.shown) return;
  const {curves, frame, cursor} = figure.shown, box = figure.svg.getBoundingClientRect();
  const at = (clientX - box.left) / box.width * frame.width;
  const share = Math.min(1, Math.max(0, (at - frame.left) / (frame.right - frame.left)));
  const wanted = frame.low + share * (frame.high - frame.low);
  const rows = curves.filter(curve => curve.line.x.length).map(curve => {
    const i = nearest(curve.line.x, wanted);
    return {curve, x: curve.line.x[i], y: curve.line.y[i]};
  });
  if (!rows.length) return;
  rows.sort((a, b) => Math.abs(a.x - wanted) - Math.abs(b.x - wanted));
  const x = rows[0].x, cut = rows.length > 12;
  rows.sort((a, b) => cut ? (b.y > a.y ? 1 : -1) : curves.indexOf(a.curve) - curves.indexOf(b.curve));
  cursor.setAttribute('x1', frame.x(x)); cursor.setAttribute('x2', frame.x(x));
  figure.tip.replaceChildren(Object.assign(document.createElement('b'), {textContent: xText(x)}));
  for (const row of rows.slice(0, 12)) {
    const line = document.createElement('span'), key = document.createElement('i');
    key.setAttribute('style', row.curve.style);
    const from = row.x === x ? '' : ` (${xText(row.x)})`;
    line.append(key, `${row.curve.name}: ${valueText(row.y, figure.chart.unit)}${from}`);
    figure.tip.append(line);
  }
  if (cut) figure.tip.append(`and ${rows.length - 12} more`);
  figure.tip.hidden = false;
  const left = frame.x(x) / frame.width * box.width + box.left - figure.element.getBoundingClientRect().left;
  const space = figure.element.clientWidth - figure.tip.offsetWidth - 4;
  figure.tip.style.left = Math.max(4, left + 14 <= space ? left + 14 : left - 14 - figure.tip.offsetWidth) + 'px';
}
function leave(figure) {
  figure.tip.hidden = true;
  if (figure.shown) for (const end of ['x1', 'x2']) figure.shown.cursor.setAttribute(end, -9);
}

// --- the figures
const colour = n => `--c:var(--c${n % 8 + 1})${n >= 8 ? ';stroke-dasharray:6 3' : ''}`;
function makeFigure(chart, sources, numbered) {
  const element = document.createElement('figure');
  element.className = 'card plot chart';
  element.innerHTML = "<figcaption><b></b><span class='legend'></span><span class='warn'></span></figcaption>" +
    "<svg role='img'></svg><div class='tip' hidden></div>";
  const [title, legend, note] = element.firstChild.children;
  title.textContent = chart.title;
  const all = [...new Map(sources.map(source => [source.kind, source]))], crowded = all.length > 8;
  const kinds = crowded ? [all[0], all[all.length - 1]] : all.length > 1 ? all : [];  // of many the ends of the scale
  for (const [kind, source] of kinds) {
    const key = document.createElement('span'), swatch = document.createElement('i');
    key.className = 'key';
    swatch.className = source.dash ? 'dashed' : '';
    swatch.setAttribute('style', several && !source.rank ? '--c:var(--soft)' : source.style);
    key.append(swatch, kind);
    legend.append(key);
  }
  const figure = {element, chart, sources, numbered, crowded, note, svg: element.querySelector('svg'),
                  tip: element.querySelector('.tip'), shown: null};
  figure.svg.setAttribute('aria-label', chart.title);
  figure.svg.addEventListener('pointermove', event => point(figure, event.clientX));
  figure.svg.addEventListener('pointerdown', event => point(figure, event.clientX));
  figure.svg.addEventListener('pointerleave', () => leave(figure));
  holder.append(element);
  return figure;
}
function figuresOfRuns() {
  const figures = [];
  for (const chart of data.charts) {
    const sources = [];
    chart.lines.forEach((line, l) => data.runs.forEach((run, r) => {
      if (!Object.hasOwn(run.series, line.key)) return;  // a metric may be named "constructor"
      const dash = l ? 'stroke-dasharray:6 3' : '';
      sources.push({run: r, series: run.series[line.key], dash, number: l ? '' : `${r + 1}`, kind: line.name,
                    name: several ? `${r + 1} ${line.name}` : line.name,
                    style: colour(several ? r : l) + (dash ? ';' + dash : '')});
    }));
    const isOne = chart.title === 'Evaluation loss' && sources.every(source => source.series.i.length < 2);
    const isOfRanks = ['Step time', 'Peak memory of a rank'].includes(chart.title) && !several && data.runs[0].ranks;
    if (sources.length && !isOne && !isOfRanks) figures.push(makeFigure(chart, sources, several));
  }
  return figures;
}
function figuresOfRanks() {
  const figures = [];
  const kinds = [['Step time by rank', 'seconds', 'seconds'], ['Peak memory by rank', 'bytes', 'peak_bytes']];
  data.runs.forEach((run, r) => kinds.forEach(([title, unit, key]) => {
    if (!run.ranks) return;
    const count = run.ranks.names.length, isEach = run.ranks.names[0] === 'rank 0';
    const sources = run.ranks[key].map((series, rank) => ({
      run: r, series, rank: true, name: run.ranks.names[rank], kind: run.ranks.names[rank],
      number: count <= 8 ? `${rank}` : '',
      style: count <= 8 ? colour(rank) : `--c:hsl(${Math.round(260 * rank / (count - 1))} 65% var(--rank-light))`}));
    const name = several ? `${title}: run ${r + 1}` : title;
    const chart = {title: name, unit, zero: false, smooth: key === 'seconds', log: true};
    figures.push(makeFigure(chart, sources, count <= 8 && isEach));
  }));
  return figures;
}
const figures = [...figuresOfRuns(), ...figuresOfRanks()];
function drawAll() {
  for (const figure of figures) {
    figure.element.hidden = figure.sources.every(s => view.hide.has(s.run)) && figure.sources[0].rank === true;
    if (!figure.element.hidden) draw(figure);
  }
  document.getElementById('smooth-value').textContent = view.smooth;
}
function follow() {
  view.x = document.querySelector('input[name=x]:checked').value;
  view.log = document.getElementById('log').checked;
  view.smooth = +document.getElementById('smooth').value;
  view.hide = new Set([...document.querySelectorAll('input[name=run]')].filter(i => !i.checked).map(i => +i.value));
  keepView();
  drawAll();
}
document.addEventListener('input', event => { if (event.target.matches('[data-view]')) follow(); });
window.addEventListener('hashchange', () => { readView(); drawAll(); });
let drawnAt = window.innerWidth;
window.addEventListener('resize', () => {
  if (window.innerWidth !== drawnAt) { drawnAt = window.innerWidth; drawAll(); }
});
controls.hidden = figures.length === 0;
readView();
drawAll();
