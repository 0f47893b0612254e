// How resources, amounts and times are written, and how a search is read.

/** The name of a resource without its domain; `2Mi pages`. */
export const label = (name) =>
  (name.startsWith('hugepages-') ? `${name.slice('hugepages-'.length)} pages` : name.slice(name.lastIndexOf('/') + 1));

export const isBytes = (name) => name === 'memory' || name.startsWith('hugepages-');

const number = new Intl.NumberFormat('en');

export const count = (value) => number.format(value);

/** An amount without its unit: GiB for memory. */
export function amount(name, value) {
  if (!isBytes(name)) return count(value);
  const gib = value / 2 ** 30;
  return gib >= 10 || Number.isInteger(gib) ? count(Math.floor(gib)) : gib.toFixed(1);
}

export const unit = (name) => (isBytes(name) ? ' GiB' : '');

export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

export function percent(part, whole) {
  return whole > 0 ? Math.round((part / whole) * 100) : 0;
}

/** `12 s`, `5 min`, `3 h`, `2 d`. */
export function age(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** CPUs and memory first, then huge pages, then devices. */
export function inOrder(names) {
  const rank = (name) => (name === 'cpu' ? 0 : name === 'memory' ? 1 : isBytes(name) ? 2 : 3);
  return [...names].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
}

export const STATUS = {
  ok: 'up to date',
  withheld: 'withheld',
  stale: 'stale',
  otherWriter: 'another writer',
  noZones: 'no zones',
  unreadable: 'unreadable',
  noObject: 'no object',
};

const NOISE = new Set(['and', 'on', 'one', 'a', 'an', 'zone', 'with', 'of', 'for', 'pod']);
const QUANTITY = /^\d+(\.\d+)?(m|[kKMGTPE]i?B?)?$/;

function resourceOf(word, resources) {
  const lower = word.toLowerCase();
  if (/^(v?cpus?|cores?)$/.test(lower)) return 'cpu';
  if (/^(mem|memory|ram)$/.test(lower)) return 'memory';
  const single = lower.replace(/s$/, '');
  const has = (name, text) => name.toLowerCase() === text || label(name).toLowerCase() === text;
  const found = resources.filter((name) => has(name, lower) || has(name, single));
  if (found.length > 0) return found[0];
  return resources.find((name) => label(name).toLowerCase().includes(single));
}

/**
 * Reads a search: `{pod: 'cpu=8,...'}` if it has amounts of resources, else `{text}` to look for in names and labels.
 * `resources` are the known names.
 */
export function readSearch(search, resources) {
  const words = search.trim().split(/[\s,]+/).filter((word) => word && !NOISE.has(word.toLowerCase()));
  const amounts = new Map();
  const text = { text: search.trim().toLowerCase() };
  for (let at = 0; at < words.length; at += 1) {
    const word = words[at];
    const pair = /^([^=]+)=(.+)$/.exec(word);
    if (pair) {
      const name = resourceOf(pair[1], resources);
      amounts.set(name ?? pair[1], pair[2]);
      continue;
    }
    if (!QUANTITY.test(word)) return text;
    const next = words[at + 1] ?? '';
    const bytes = /^([kKMGTPE])i?B?$/.exec(next);
    if (bytes) {
      amounts.set('memory', `${word}${bytes[1]}i`);
      at += /^(mem|memory|ram)$/i.test(words[at + 2] ?? '') ? 2 : 1;
      continue;
    }
    const name = QUANTITY.test(next) ? undefined : resourceOf(next, resources);
    if (next && name) {
      amounts.set(name, word.replace(/B$/, ''));
      at += 1;
    } else if (/[kKMGTPE]i?B?$/.test(word)) {
      amounts.set('memory', word.replace(/B$/, ''));
    } else {
      return text;
    }
  }
  if (amounts.size === 0) return text;
  return { pod: [...amounts].map(([name, value]) => `${name}=${value}`).join(',') };
}
