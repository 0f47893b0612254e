// The map: a tile for each node, a bar for each zone. Tiles are drawn on canvases that scroll with the page; only those
// near the window exist.

import { amounts, fragmentation } from './fleet.js';
import { STATUS, amount, label, plural, unit } from './text.js';

const SIZES = {
  s: { width: 38, height: 30, gap: 4, pad: 3, name: 0 },
  m: { width: 84, height: 52, gap: 6, pad: 4, name: 12 },
  l: { width: 176, height: 92, gap: 10, pad: 8, name: 16 },
};
const HEADING = 34;
/** The least height of one canvas: little enough to draw several in one frame. */
const STRIP = 120;
/** How far beyond the window canvases exist. */
const AHEAD = 600;
/** How many milliseconds of a frame are for canvases beyond the window. */
const SPARE = 4;

export class FleetMap {
  constructor(section, fleet, onOpen, onHover) {
    this.section = section;
    this.fleet = fleet;
    this.onOpen = onOpen;
    this.onHover = onHover;
    this.sheet = section.querySelector('#sheet');
    this.cursor = section.querySelector('#cursor');
    this.group = '';
    this.colour = 'cpu';
    /** Returns whether a node is lit: `true`, `false`, or `'spread'`. */
    this.lit = null;
    this.rows = [];
    this.strips = [];
    this.places = new Map();
    this.headings = [];
    this.pool = [];
    this.active = null;
    this.opened = null;
    this.dirty = new Set();
    this.readColours();

    section.addEventListener('scroll', () => this.request(), { passive: true });
    new ResizeObserver(() => this.relayout()).observe(section);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
      this.readColours();
      this.redraw();
    });
    this.sheet.addEventListener('click', (event) => this.click(event));
    this.sheet.addEventListener('mousemove', (event) => {
      const tile = event.target === this.cursor ? null : this.at(event);
      this.onHover(tile, event);
      this.sheet.style.cursor = tile ? 'pointer' : '';
    });
    this.sheet.addEventListener('mouseleave', (event) => this.onHover(null, event));
    this.cursor.addEventListener('click', (event) => {
      event.stopPropagation();
      if (this.active) this.onOpen(this.active);
    });
    this.cursor.addEventListener('keydown', (event) => this.key(event));
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    this.colours = {};
    for (const name of ['tile', 'line', 'text', 'free', 'used', 'memory', 'device', 'bad', 'warn', 'dim', 'accent', 'good']) {
      this.colours[name] = read(`--${name}`);
    }
    this.scale = [0, 1, 2, 3, 4].map((step) => read(`--scale-${step}`));
  }

  /** Draws in the next frame. */
  request() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  /** Everything may be elsewhere. */
  relayout() {
    this.needsLayout = true;
    this.request();
  }

  /** Everything may look different. */
  redraw() {
    for (const strip of this.strips) strip.drawn = false;
    this.request();
  }

  /** Other nodes may be lit. */
  relight() {
    for (const strip of this.strips) strip.lights = strip.drawn;
    this.request();
  }

  /** These nodes look different. */
  update(names) {
    for (const name of names) this.dirty.add(name);
    this.request();
  }

  sizes() {
    const count = this.fleet.nodes.size;
    return count > 400 ? SIZES.s : count > 60 ? SIZES.m : SIZES.l;
  }

  layOut() {
    this.needsLayout = false;
    const width = this.section.clientWidth - 16;
    const size = this.sizes();
    const tiles = this.fleet.inOrder();
    const groups = new Map();
    for (const tile of tiles) {
      const key = this.group ? tile.labels[this.group] ?? '' : '';
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(tile);
    }
    const named = [...groups].sort(([a], [b]) => (a === '') - (b === '') || a.localeCompare(b, 'en', { numeric: true }));
    const columns = Math.max(1, Math.floor((width + size.gap) / (size.width + size.gap)));
    // Large tiles of machines with many zones are higher.
    const most = Math.min(16, tiles.reduce((zones, tile) => Math.max(zones, tile.zones.length), 1));
    const height = Math.max(size.height, size.name + 2 * size.pad + most * 3);
    Object.assign(this, { columns, tileHeight: height, tileSize: size });
    this.rows = [];
    this.places.clear();
    const headings = [];
    let y = 0;
    for (const [name, members] of named) {
      if (this.group) {
        headings.push({ y, text: `${label(this.group)}: ${name || 'none'}`, count: members.length });
        y += HEADING;
      }
      for (let at = 0; at < members.length; at += columns) {
        const row = { y, names: members.slice(at, at + columns).map((tile) => tile.name) };
        row.names.forEach((node, column) => this.places.set(node, { row: this.rows.length, column }));
        this.rows.push(row);
        y += height + size.gap;
      }
      y += 6;
    }
    this.sheet.style.height = `${y}px`;
    this.heads(headings);
    for (const strip of this.strips) this.release(strip);
    this.strips = [];
    for (const [index, row] of this.rows.entries()) {
      const last = this.strips.at(-1);
      if (last && row.y - last.y < STRIP) {
        last.end = index + 1;
        last.height = row.y + height - last.y + 2;
      } else {
        this.strips.push({ y: row.y, height: height + 2, start: index, end: index + 1, canvas: null, drawn: false });
      }
    }
    if (!this.places.has(this.active)) this.active = this.rows[0]?.names[0] ?? null;
    this.placeCursor();
  }

  heads(headings) {
    while (this.headings.length > headings.length) this.headings.pop().remove();
    while (this.headings.length < headings.length) {
      const heading = document.createElement('h2');
      this.sheet.append(heading);
      this.headings.push(heading);
    }
    headings.forEach(({ y, text, count }, at) => {
      this.headings[at].style.top = `${y}px`;
      this.headings[at].textContent = `${text} · ${plural(count, 'node')}`;
    });
  }

  release(strip) {
    if (!strip.canvas) return;
    strip.canvas.remove();
    this.pool.push(strip.canvas);
    strip.canvas = null;
    strip.drawn = false;
  }

  draw() {
    if (this.needsLayout || this.laidOut !== this.fleet.layout) {
      this.laidOut = this.fleet.layout;
      this.layOut();
    }
    const top = this.section.scrollTop - AHEAD;
    const bottom = this.section.scrollTop + this.section.clientHeight + AHEAD;
    const near = [];
    for (const strip of this.strips) {
      if (strip.y + strip.height < top || strip.y > bottom) this.release(strip);
      else if (strip.y + strip.height < top + AHEAD || strip.y > bottom - AHEAD) near.push(strip);
      else this.refresh(strip);
    }
    const start = performance.now();
    for (const strip of near) {
      if (performance.now() - start < SPARE) this.refresh(strip);
      else {
        // In the next frame; it must not be shown as it was.
        if (this.isOld(strip)) strip.drawn = false;
        if (!strip.drawn) this.request();
      }
    }
    if (this.dirty.has(this.active)) this.placeCursor();
    this.dirty.clear();
  }

  /** Whether a node of the strip looks different. */
  isOld(strip) {
    if (strip.lights) return true;
    for (const name of this.dirty) {
      const place = this.places.get(name);
      if (place && place.row >= strip.start && place.row < strip.end) return true;
    }
    return false;
  }

  /** Draws what is not there yet, or looks different. */
  refresh(strip) {
    if (!strip.canvas || !strip.drawn) {
      this.drawStrip(strip);
      return;
    }
    if (strip.lights) {
      strip.lights = false;
      for (let at = strip.start; at < strip.end; at += 1) {
        const row = this.rows[at];
        row.names.forEach((name, column) => {
          const tile = this.fleet.nodes.get(name);
          if (tile && this.isLit(tile) !== strip.lit.get(name)) this.drawTile(strip, row, column, name);
        });
      }
    }
    for (const name of this.dirty) {
      const place = this.places.get(name);
      if (place && place.row >= strip.start && place.row < strip.end) this.drawTile(strip, this.rows[place.row], place.column, name);
    }
  }

  /** `true`, `false` or `'spread'`; `null` if nothing is searched for. */
  isLit(tile) {
    return this.lit ? this.lit(tile) : null;
  }

  drawStrip(strip) {
    const ratio = Math.min(2, devicePixelRatio || 1);
    const width = this.section.clientWidth - 16;
    if (!strip.canvas) {
      strip.canvas = this.pool.pop() ?? document.createElement('canvas');
      strip.canvas.setAttribute('aria-hidden', 'true');
      strip.canvas.style.top = `${strip.y}px`;
      this.sheet.append(strip.canvas);
    }
    const { canvas } = strip;
    const [pixelsX, pixelsY] = [Math.round(width * ratio), Math.round(strip.height * ratio)];
    if (canvas.width !== pixelsX || canvas.height !== pixelsY) {
      canvas.width = pixelsX;
      canvas.height = pixelsY;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${strip.height}px`;
    }
    strip.context = canvas.getContext('2d');
    strip.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    strip.context.clearRect(0, 0, width, strip.height);
    strip.lit = new Map();
    for (let at = strip.start; at < strip.end; at += 1) {
      const row = this.rows[at];
      row.names.forEach((name, column) => this.drawTile(strip, row, column, name));
    }
    strip.drawn = true;
    strip.lights = false;
  }

  drawTile(strip, row, column, name) {
    const tile = this.fleet.nodes.get(name);
    if (!tile) return;
    const { context } = strip;
    const { tileSize: size, tileHeight: height, colours } = this;
    const [x, y] = [column * (size.width + size.gap) + 1, row.y - strip.y + 1];
    const [width, inner] = [size.width - 2, size.width - 2 - 2 * size.pad];
    context.globalAlpha = 1;
    context.clearRect(x - 1, y - 1, size.width + 1, height + 1);
    const lit = this.isLit(tile);
    strip.lit.set(name, lit);
    context.globalAlpha = lit === false ? 0.18 : 1;
    context.fillStyle = this.background(tile);
    context.fillRect(x, y, width, height - 2);
    let below = y + size.pad;
    if (size.name) {
      context.fillStyle = colours.text;
      context.font = `${size.name - 2}px system-ui, sans-serif`;
      context.textBaseline = 'top';
      context.save();
      context.beginPath();
      context.rect(x, y, width - size.pad, size.name + size.pad);
      context.clip();
      context.fillText(tile.name, x + size.pad, below);
      context.restore();
      below += size.name;
    }
    const resource = this.colour === 'status' || this.colour === 'fragmentation' ? 'cpu' : this.colour;
    const index = tile.resources.indexOf(resource);
    const each = (height - 2 - (below - y) - size.pad) / Math.max(1, tile.zones.length);
    const thick = Math.max(1, Math.min(24, each - (each > 3 ? 1 : 0)));
    const hue = resource === 'cpu' ? colours.used : resource === 'memory' ? colours.memory : colours.device;
    // Without gaps between the bars, what is free is one rectangle.
    const isOne = thick === each && index >= 0 && tile.zones.every((zone) => zone.of[index] > 0);
    if (isOne) {
      context.fillStyle = colours.free;
      context.fillRect(x + size.pad, below, inner, each * tile.zones.length);
      context.fillStyle = hue;
    }
    tile.zones.forEach((zone, at) => {
      const top = below + at * each;
      const of = index < 0 ? 0 : zone.of[index];
      if (of === 0) {
        context.fillStyle = colours.line;
        context.fillRect(x + size.pad, top + thick / 2, inner, 1);
        return;
      }
      const used = Math.round(inner * Math.min(1, 1 - zone.free[index] / of));
      if (!isOne) {
        context.fillStyle = colours.free;
        context.fillRect(x + size.pad + used, top, inner - used, thick);
        context.fillStyle = hue;
      }
      if (used > 0) context.fillRect(x + size.pad, top, used, thick);
    });
    this.drawStatus(context, tile, x, y, width, height - 2);
    if (lit) {
      context.strokeStyle = colours.accent;
      context.lineWidth = 2;
      context.setLineDash(lit === 'spread' ? [4, 3] : []);
      context.strokeRect(x, y, width, height - 2);
      context.setLineDash([]);
    }
    if (name === this.opened) {
      context.strokeStyle = colours.text;
      context.lineWidth = 2;
      context.strokeRect(x, y, width, height - 2);
    }
    context.globalAlpha = 1;
  }

  /** The colour behind the bars. */
  background(tile) {
    if (this.colour === 'fragmentation') {
      return this.scale[Math.min(4, Math.floor(fragmentation(tile, 'cpu') * 5))];
    }
    return this.colours.tile;
  }

  /** Not by colour alone: withheld nodes have a striped edge, stale ones are crossed out. */
  drawStatus(context, tile, x, y, width, height) {
    const { colours } = this;
    if (tile.status === 'ok') return;
    if (tile.status === 'withheld') {
      context.fillStyle = colours.warn;
      for (let at = 0; at < height; at += 6) context.fillRect(x, y + at, 3, Math.min(4, height - at));
      context.fillRect(x, y, width, 2);
      return;
    }
    const isBad = tile.status === 'unreadable' || tile.status === 'noZones' || tile.status === 'otherWriter';
    context.strokeStyle = isBad ? colours.bad : colours.dim;
    context.lineWidth = 1.5;
    context.beginPath();
    context.rect(x + 0.75, y + 0.75, width - 1.5, height - 1.5);
    if (!isBad) {
      for (let at = -height; at < width; at += 8) {
        const start = Math.max(0, at);
        const end = Math.min(width, at + height);
        context.moveTo(x + start, y + height - (start - at));
        context.lineTo(x + end, y + height - (end - at));
      }
    } else {
      context.moveTo(x, y + height);
      context.lineTo(x + Math.min(width, height), y);
    }
    context.stroke();
  }

  /** The node under the pointer. */
  at(event) {
    const box = this.sheet.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const { tileSize: size, tileHeight: height } = this;
    if (!size) return null;
    const column = Math.floor(x / (size.width + size.gap));
    let [low, high] = [0, this.rows.length - 1];
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (this.rows[middle].y <= y) low = middle;
      else high = middle - 1;
    }
    const row = this.rows[low];
    const isIn = row && y >= row.y && y < row.y + height && x - column * (size.width + size.gap) < size.width;
    return isIn ? this.fleet.nodes.get(row.names[column]) ?? null : null;
  }

  click(event) {
    const tile = this.at(event);
    if (!tile) return;
    this.move(tile.name, false);
    this.onOpen(tile.name);
  }

  key(event) {
    const place = this.places.get(this.active);
    if (!place) return;
    const { row, column } = place;
    const inRow = (to, at) => this.rows[to]?.names[Math.min(at, this.rows[to].names.length - 1)];
    const page = Math.max(1, Math.floor(this.section.clientHeight / (this.tileHeight + this.tileSize.gap)) - 1);
    const clamp = (to) => Math.max(0, Math.min(this.rows.length - 1, to));
    const targets = {
      ArrowRight: () => this.rows[row].names[column + 1] ?? inRow(row + 1, 0),
      ArrowLeft: () => this.rows[row].names[column - 1] ?? inRow(row - 1, Infinity),
      ArrowDown: () => inRow(row + 1, column),
      ArrowUp: () => inRow(row - 1, column),
      PageDown: () => inRow(clamp(row + page), column),
      PageUp: () => inRow(clamp(row - page), column),
      Home: () => inRow(0, 0),
      End: () => inRow(this.rows.length - 1, Infinity),
    };
    const target = targets[event.key]?.();
    if (!targets[event.key]) return;
    event.preventDefault();
    if (target) this.move(target, true);
  }

  /** Makes a node the active one, and scrolls to it. */
  move(name, announces) {
    this.active = name;
    this.placeCursor();
    const place = this.places.get(name);
    if (!place) return;
    const { y } = this.rows[place.row];
    const view = this.section;
    if (y < view.scrollTop) view.scrollTop = y - HEADING;
    else if (y + this.tileHeight > view.scrollTop + view.clientHeight) {
      view.scrollTop = y + this.tileHeight + this.tileSize.gap - view.clientHeight;
    }
    if (announces) document.querySelector('#announce').textContent = this.cursor.getAttribute('aria-label');
  }

  placeCursor() {
    const place = this.places.get(this.active);
    this.cursor.hidden = !place;
    if (!place) return;
    const { tileSize: size, tileHeight: height } = this;
    const { style } = this.cursor;
    style.left = `${place.column * (size.width + size.gap)}px`;
    style.top = `${this.rows[place.row].y}px`;
    style.width = `${size.width}px`;
    style.height = `${height}px`;
    this.cursor.setAttribute('aria-label', describe(this.fleet.nodes.get(this.active)));
  }

  /** Marks the opened node. */
  open(name) {
    const before = this.opened;
    this.opened = name;
    this.update([before, name].filter(Boolean));
    if (name && this.places.has(name)) this.move(name, false);
  }
}

/** A node in a sentence, for screen readers and tips. */
export function describe(tile) {
  if (!tile) return '';
  const shown = ['cpu', 'memory'].filter((name) => tile.resources.includes(name));
  const parts = shown.map((name) => {
    const { of, free } = amounts(tile, name);
    return `${label(name)} ${amount(name, free)} of ${amount(name, of)}${unit(name)} free`;
  });
  return [tile.name, STATUS[tile.status], plural(tile.zones.length, 'zone'), ...parts].join(', ');
}
