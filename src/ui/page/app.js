// The page: what it shows is in its address, so that it can be shared.

import { Fleet } from './fleet.js';
import { FleetMap, describe } from './map.js';
import { changesView, element, fitView, fragment, nodeView, pendingView, podView } from './panel.js';
import { STATUS, count, label, percent, plural, readSearch } from './text.js';

/** How often an open view that changes is read again at most, when changes are asked for again after a refusal, and when a
 * connection counts as lost, in milliseconds. */
const AGAIN = { node: 200, fit: 3000, pending: 5000, refused: 5000, lost: 3000 };
/** How often an open node or pod is read again without a change of an object: pods can start and end without one. */
const UNCHANGED = 5000;

const find = (selector) => document.querySelector(selector);
const fleet = new Fleet();
const map = new FleetMap(find('#map'), fleet, (name) => go({ node: name }), hover);
const state = { group: '', colour: 'cpu', q: '', node: '', pod: '', view: '' };
/** The nodes on which the pod of the search fits: name to `true` or `'spread'`. */
let fitting = null;
let shown = '';
let lastFocus = null;

function go(changes) {
  location.hash = fragment(changes);
}

/** Changes a setting of the address without a new entry in the history. */
function set(key, value) {
  const address = new URLSearchParams(location.hash.slice(1));
  if (value) address.set(key, value);
  else address.delete(key);
  history.replaceState(null, '', `#${address}`);
  read();
}

/** Shows what the address says. */
function read() {
  const address = new URLSearchParams(location.hash.slice(1));
  for (const key of Object.keys(state)) state[key] = address.get(key) ?? (key === 'colour' ? 'cpu' : '');
  const query = find('#query');
  if (document.activeElement !== query) query.value = state.q;
  const isOther = map.group !== state.group || map.colour !== state.colour;
  Object.assign(map, { group: state.group, colour: state.colour });
  search();
  if (isOther) {
    options();
    legend();
    summarise();
    map.relayout();
  } else map.relight();
  view(true);
}

let optionsAt = -1;

function options() {
  optionsAt = fleet.layout;
  choose(find('#group'), [['', 'none'], ...fleet.groupKeys().map((key) => [key, label(key)])], state.group);
  const resources = fleet.resources().map((name) => [name, label(name)]);
  choose(find('#colour'), [...resources, ['fragmentation', 'fragmentation'], ['status', 'status only']], state.colour);
}

function choose(select, wanted, value) {
  const known = wanted.some(([key]) => key === value) ? wanted : [...wanted, [value, label(value)]];
  const text = JSON.stringify(known);
  if (select.dataset.options !== text) {
    select.replaceChildren(...known.map(([key, name]) => element('option', { value: key }, name)));
    select.dataset.options = text;
  }
  select.value = value;
}

// Search.

let asked = '';
let askAgain = null;

function search() {
  const found = find('#found');
  if (!state.q) {
    fitting = null;
    asked = '';
    map.lit = null;
    found.textContent = '';
    return;
  }
  const wanted = readSearch(state.q, fleet.resources());
  if (wanted.pod) {
    map.lit = (tile) => fitting?.get(tile.name) ?? false;
    if (asked !== wanted.pod) {
      asked = wanted.pod;
      fitting = null;
      found.textContent = `Looking for room for ${wanted.pod.replaceAll(',', ', ')} …`;
      ask();
    }
    return;
  }
  asked = '';
  const has = (tile) => tile.name.toLowerCase().includes(wanted.text) || tile.status.toLowerCase() === wanted.text
    || Object.values(tile.labels).some((value) => value.toLowerCase().includes(wanted.text));
  map.lit = has;
  let matching = 0;
  for (const tile of fleet.nodes.values()) matching += has(tile);
  found.textContent = `${plural(matching, 'node')} found`;
}

async function ask() {
  const pod = asked;
  if (!pod) return;
  clearTimeout(askAgain);
  askAgain = null;
  try {
    const answer = await get(`/api/fit?pod=${encodeURIComponent(pod)}`);
    if (asked !== pod) return;
    fitting = new Map(answer.fits.map((one) => [one.node, one.aligned ? true : 'spread']));
    const aligned = answer.fits.filter((one) => one.aligned).length;
    find('#found').replaceChildren(
      `${pod.replaceAll(',', ', ')}: fits on one zone on ${count(aligned)} of ${plural(answer.nodes, 'node')} `,
      element('a', { href: fragment({ view: 'fit' }) }, 'details'));
    if (state.view === 'fit') render(fitView(answer, pod));
  } catch (error) {
    if (asked === pod) find('#found').textContent = error.message;
  }
  map.relight();
}

// The panel.

let viewing = 0;
/** What is being read, and whether it has changed since. */
let reading = '';
let isDue = false;
let viewTimer = null;
let viewAt = Infinity;

/** Reads what the panel shows, again if the address is the same. The focus moves to what is new. */
async function view(isNew) {
  const key = [state.node, state.pod, state.view].join('|');
  map.open(state.node || null);
  if (key === '||') return close();
  if (reading === key) {
    isDue ||= !isNew;
    return undefined;
  }
  if (isNew && key === shown) return undefined;
  viewing += 1;
  const mine = viewing;
  [reading, isDue] = [key, false];
  const parts = await partsOf().catch((error) => [
    element('h2', { tabindex: '-1' }, 'Not available'), element('p', { class: 'problem' }, error.message)]);
  // Something else is to be shown since.
  if (mine !== viewing) return undefined;
  reading = '';
  render(parts, key !== shown);
  shown = key;
  if (isDue) later(AGAIN[state.view] ?? AGAIN.node);
  return undefined;
}

async function partsOf() {
  if (state.node) return nodeView(await get(`/api/nodes/${encodeURIComponent(state.node)}`), fleet);
  if (state.pod) {
    const [namespace, name] = state.pod.split('/');
    return podView(await get(`/api/pods/${encodeURIComponent(namespace)}/${encodeURIComponent(name ?? '')}`));
  }
  if (state.view === 'pending') return pendingView(await get('/api/pending'));
  if (state.view === 'changes') return changesView(fleet);
  if (state.view === 'fit' && asked) return fitView(await get(`/api/fit?pod=${encodeURIComponent(asked)}`), asked);
  return [element('h2', { tabindex: '-1' }, 'Nothing to show'), element('p', {}, 'Search for a pod such as "8 cpu 1 gpu" first.')];
}

function render(parts, takesFocus) {
  const panel = find('#panel');
  const content = find('#content');
  const top = panel.scrollTop;
  if (panel.hidden) lastFocus = document.activeElement;
  panel.hidden = false;
  document.body.classList.add('open');
  content.replaceChildren(...parts.flat().filter(Boolean));
  if (takesFocus) {
    panel.scrollTop = 0;
    content.querySelector('h2')?.focus({ preventScroll: true });
  } else panel.scrollTop = top;
}

function close() {
  shown = '';
  reading = '';
  viewing += 1;
  if (find('#panel').hidden) return;
  find('#panel').hidden = true;
  document.body.classList.remove('open');
  (lastFocus?.isConnected ? lastFocus : find('#cursor')).focus({ preventScroll: true });
}

/** The panel is read again after this time, or earlier if that is planned. */
function later(milliseconds) {
  const at = performance.now() + milliseconds;
  if (at >= viewAt) return;
  clearTimeout(viewTimer);
  viewAt = at;
  viewTimer = setTimeout(() => {
    viewAt = Infinity;
    view(false);
  }, milliseconds);
}

async function get(path) {
  const response = await fetch(path);
  const text = await response.text();
  if (!response.ok) throw new Error(text.trim() || response.statusText);
  return JSON.parse(text);
}

// Around the map.

function summarise() {
  const resource = state.colour === 'status' || state.colour === 'fragmentation' ? 'cpu' : state.colour;
  const { zones, of, free, status } = fleet.totals(resource);
  const others = Object.entries(status).filter(([key]) => key !== 'ok').map(([key, nodes]) => `${count(nodes)} ${STATUS[key]}`);
  const none = fleet.complete ? 'No nodes: do agents run in this cluster?' : 'Reading the cluster …';
  const text = fleet.nodes.size === 0 ? none
    : [plural(fleet.nodes.size, 'node'), plural(zones, 'zone'), `${label(resource)} ${percent(of - free, of)} % in use`, ...others].join(' · ');
  const place = find('#summary');
  if (place.textContent !== text) place.textContent = text;
}

function legend() {
  const swatch = (kind, text) => element('span', {}, element('i', { class: `swatch ${kind}`, 'aria-hidden': 'true' }), text);
  const resource = { cpu: 'used', memory: 'memory' }[state.colour] ?? 'device';
  const bars = state.colour === 'fragmentation'
    ? [swatch('scale-0', 'free CPUs in one zone'), swatch('scale-4', 'free CPUs scattered over zones')]
    : state.colour === 'status' ? [] : [swatch(resource, `${label(state.colour)} in use`), swatch('free', 'free')];
  find('#legend').replaceChildren('Each tile is a node, each bar a zone.', ...bars,
    swatch('withheld', 'withheld: not placed on now'), swatch('stale', 'stale or no object'), swatch('bad', 'unreadable or written by others'));
}

function hover(tile, event) {
  const tip = find('#tip');
  tip.hidden = !tile;
  if (!tile) return;
  tip.textContent = describe(tile) + (tile.why ? ` (${tile.why})` : '');
  const { width } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - width - 8))}px`;
  tip.style.top = `${Math.min(event.clientY + 16, innerHeight - 60)}px`;
}

function problems(connection) {
  const all = [...(connection ? [connection] : []), ...fleet.problems];
  const place = find('#problems');
  place.hidden = all.length === 0;
  const text = all.join(' · ');
  if (place.textContent !== text) place.textContent = text;
}

// Events.

const LOST = 'The connection is lost: what is shown may be out of date. It is tried again.';
let seenAt = 0;
let lost = null;

/** Says why no changes are sent. The browser does not try again after an answer that is no stream. */
async function explain() {
  clearTimeout(lost);
  lost = null;
  const stop = new AbortController();
  try {
    const response = await fetch('/api/events', { signal: stop.signal });
    if (response.ok) return;
    const text = (await response.text()).trim();
    problems(response.status === 401 ? `${text}: reload the page to log in` : text);
  } catch {
    problems(LOST);
  } finally {
    stop.abort();
    setTimeout(follow, AGAIN.refused);
  }
}

function follow() {
  const events = new EventSource('/api/events');
  events.onmessage = (event) => {
    const delta = JSON.parse(event.data);
    const changed = fleet.apply(delta);
    clearTimeout(lost);
    lost = null;
    problems('');
    // While all nodes arrive, what takes longer with each is done a few times a second.
    const now = performance.now();
    if (fleet.complete || now - seenAt > 250) {
      seenAt = now;
      if (changed === null) map.relayout();
      else map.update(changed);
      summarise();
      if (optionsAt !== fleet.layout) options();
    }
    if (state.q && !asked) {
      search();
      map.relight();
    }
    if (asked && fleet.complete) askAgain ??= setTimeout(ask, AGAIN.fit);
    if (state.node && (changed === null || changed.includes(state.node))) later(AGAIN.node);
    if (state.pod || state.view === 'changes') later(1000);
    if (state.view === 'pending') later(AGAIN.pending);
    document.documentElement.dataset.version = delta.version;
    document.documentElement.dataset.complete = fleet.complete;
  };
  events.onerror = () => {
    if (events.readyState === EventSource.CLOSED) explain();
    // A stream ends every few minutes, and the next one starts soon.
    else lost ??= setTimeout(() => problems(LOST), AGAIN.lost);
  };
}

find('#query').addEventListener('input', (event) => set('q', event.target.value));
find('#search').addEventListener('submit', (event) => {
  event.preventDefault();
  const text = state.q.trim();
  if (/^[a-z0-9.-]+\/[a-z0-9.-]+$/.test(text)) return go({ pod: text });
  if (asked) return go({ view: 'fit' });
  const first = map.lit && fleet.inOrder().find((tile) => map.lit(tile));
  if (first) go({ node: first.name });
  return undefined;
});
for (const key of ['group', 'colour']) find(`#${key}`).addEventListener('change', (event) => set(key, event.target.value));
find('#pending').addEventListener('click', () => go({ view: 'pending' }));
find('#changes').addEventListener('click', () => go({ view: 'changes' }));
find('#close').addEventListener('click', () => go({}));
find('#share').addEventListener('click', async () => {
  try {
    await navigator.clipboard.writeText(location.href);
    find('#announce').textContent = 'The link is copied.';
    find('#share').textContent = 'Copied';
    setTimeout(() => { find('#share').textContent = 'Copy link'; }, 2000);
  } catch {
    prompt('The link', location.href);
  }
});
addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !find('#panel').hidden) go({});
  if (event.key === '/' && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName)) {
    event.preventDefault();
    find('#query').focus();
  }
});
addEventListener('hashchange', read);
setInterval(() => {
  if (!document.hidden && (state.node || state.pod)) later(0);
}, UNCHANGED);

options();
legend();
summarise();
read();
follow();
