// All nodes, as the server's events tell them.

import { inOrder } from './text.js';

/** How many changes are kept, of all nodes. */
const HISTORY = 2000;

/** Numbers in names are ordered by their value. */
const sortKey = (name) => name.replace(/\d+/g, (digits) => digits.padStart(12, '0'));

export class Fleet {
  constructor() {
    this.nodes = new Map();
    /** Descending by time: `{at, node, changes}`. */
    this.history = [];
    this.problems = [];
    this.complete = false;
    /** Increases when nodes come or go, or their groups or resources may change. */
    this.layout = 0;
    this.sorted = [];
  }

  /** Takes an event. Returns the names of nodes that changed, or `null` for all. */
  apply(delta) {
    if (delta.reset) {
      this.nodes.clear();
      this.history = [];
      this.layout += 1;
    }
    for (const tile of delta.nodes) {
      const before = this.nodes.get(tile.name);
      tile.labels ??= {};
      if (!before || JSON.stringify(before.labels) !== JSON.stringify(tile.labels)
        || before.zones.length !== tile.zones.length || before.resources.length !== tile.resources.length) this.layout += 1;
      tile.key = before?.key ?? sortKey(tile.name);
      this.nodes.set(tile.name, tile);
    }
    for (const name of delta.gone ?? []) {
      this.nodes.delete(name);
      this.layout += 1;
    }
    for (const event of delta.history ?? []) this.history.unshift(event);
    this.history.length = Math.min(this.history.length, HISTORY);
    this.problems = delta.problems;
    this.complete = delta.complete || (this.complete && !delta.reset);
    return delta.reset ? null : delta.nodes.map((tile) => tile.name);
  }

  /** The nodes, ascending by name. */
  inOrder() {
    if (this.sortedAt !== this.layout) {
      this.sorted = [...this.nodes.values()].sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0));
      this.sortedAt = this.layout;
    } else {
      this.sorted = this.sorted.map((tile) => this.nodes.get(tile.name));
    }
    return this.sorted;
  }

  /** The resources of all zones. */
  resources() {
    const names = new Set();
    for (const tile of this.nodes.values()) for (const name of tile.resources) names.add(name);
    return inOrder(names);
  }

  /** The keys of the nodes' labels. */
  groupKeys() {
    const keys = new Set();
    for (const tile of this.nodes.values()) for (const key of Object.keys(tile.labels)) keys.add(key);
    return [...keys].sort();
  }

  /** Nodes by status, zones, and what is used of a resource. */
  totals(resource) {
    const totals = { zones: 0, of: 0, free: 0, status: {} };
    for (const tile of this.nodes.values()) {
      totals.status[tile.status] = (totals.status[tile.status] ?? 0) + 1;
      totals.zones += tile.zones.length;
      const at = tile.resources.indexOf(resource);
      if (at < 0) continue;
      for (const zone of tile.zones) {
        totals.of += zone.of[at];
        totals.free += zone.free[at];
      }
    }
    return totals;
  }
}

/** What is allocatable and available of a resource on a node, and the most that one zone has. */
export function amounts(tile, resource) {
  const at = tile.resources.indexOf(resource);
  const sums = { of: 0, free: 0, largest: 0 };
  if (at < 0) return sums;
  for (const zone of tile.zones) {
    sums.of += zone.of[at];
    sums.free += zone.free[at];
    sums.largest = Math.max(sums.largest, zone.free[at]);
  }
  return sums;
}

/** The share of a node's free amount that is outside the zone with the most: 0 is the best. */
export function fragmentation(tile, resource) {
  const { free, largest } = amounts(tile, resource);
  return free > 0 ? 1 - largest / free : 0;
}
