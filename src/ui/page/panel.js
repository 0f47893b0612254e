// What the panel shows: a node, a pod, pending pods, changes, and where a pod fits.

import { STATUS, age, amount, count, inOrder, isBytes, label, percent, plural, unit } from './text.js';

/** The most cells that are drawn for one resource of a zone; more are one bar. */
const MAX_CELLS = 512;
const MAX_ROWS = 200;

/** Creates an element. Text is never taken for HTML. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? '' : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

const link = (text, fragment) => element('a', { href: fragment }, text);

const table = (caption, heads, rows) =>
  element('div', { class: 'scrolls', tabindex: '0', role: 'region', 'aria-label': caption },
    element('table', {},
      element('caption', {}, caption),
      element('thead', {}, element('tr', {}, heads.map((head) => element('th', { scope: 'col' }, head)))),
      element('tbody', {}, rows.map((cells) =>
        element('tr', {}, cells.map((cell) => element('td', {}, cell)))))));

/** Far apart on the colour wheel, whatever their number. */
const hue = (index) => `hsl(${Math.round(index * 137.5) % 360} 62% ${index % 2 ? 46 : 58}%)`;

function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== '');
  return element('dl', {}, known.map(([name, value]) => [element('dt', {}, name), element('dd', {}, value)]));
}

const zonesText = (zones) => {
  if (!zones) return 'not known';
  return zones.length === 0 ? 'none' : `${zones.length === 1 ? 'zone' : 'zones'} ${zones.join(', ')}`;
};

/** A node: its zones as they lie, and who has what. */
export function nodeView({ tile, details, error }, fleet) {
  const head = [
    element('h2', { tabindex: '-1' }, tile.name),
    element('p', { class: `status ${tile.status}` }, STATUS[tile.status], tile.why ? `: ${tile.why}` : ''),
    facts([
      ...(details?.facts ?? []),
      ...Object.entries(tile.labels ?? {}).map(([key, value]) => [label(key), value]),
      ['changed', tile.changed ? `${age(Date.now() - tile.changed)} ago` : null],
    ]),
  ];
  if (error) head.push(element('p', { class: 'problem' }, error));
  if (!details) return head;
  return [
    ...head,
    element('h3', {}, 'Zones'),
    element('p', { class: 'note' }, 'A square is a CPU or a device, in the colour of the container that has it; grey: in use, and by whom in this zone is not known.'),
    sockets(details),
    distances(details.zones),
    element('h3', {}, 'Containers with exclusive resources'),
    holders(details.holders),
    element('h3', {}, 'The last minutes'),
    spark(tile, fleet, 'cpu'),
    changeTable(fleet.history.filter((event) => event.node === tile.name).slice(0, 20), false),
  ];
}

/** Zones of one socket are in one box. */
function sockets({ zones, holders: all }) {
  const boxes = new Map();
  for (const zone of zones) {
    const key = zone.sockets.join(', ');
    if (!boxes.has(key)) boxes.set(key, []);
    boxes.get(key).push(zone);
  }
  return element('div', { class: 'sockets' }, [...boxes].map(([socket, members]) =>
    element('section', { class: 'socket', 'aria-label': socket ? `Socket ${socket}` : 'Zones' },
      socket ? element('h4', {}, `Socket ${socket}`) : null,
      members.map((zone) => zoneCard(zone, all)))));
}

function zoneCard(zone, all) {
  const byName = new Map(zone.resources.map((resource) => [resource.name, resource]));
  const notes = [
    zone.caches.length > 1 ? `L3 caches of CPUs ${zone.caches.join(' and ')}` : null,
    zone.memoryGroup ? `memory group ${zone.memoryGroup}` : null,
  ].filter(Boolean).join(', ');
  return element('section', { class: 'zone', 'aria-label': `Zone ${zone.id}` },
    element('h5', {}, `Zone ${zone.id}`),
    notes ? element('p', { class: 'note' }, notes) : null,
    inOrder(byName.keys()).map((name) => resource(byName.get(name), all)));
}

/** A cell for each CPU or device, a bar for memory. */
function resource({ name, allocatable, available, capacity, held }, all) {
  const used = Math.max(0, allocatable - available);
  const who = ([index]) => `${all[index].namespace}/${all[index].pod} ${all[index].container}`;
  const known = held.reduce((sum, [, value]) => sum + value, 0);
  const parts = held.map((pair) => ({ value: pair[1], colour: hue(pair[0]), title: who(pair) }));
  if (used > known) parts.push({ value: used - known, colour: 'var(--unknown)', title: 'in use; by whom on this zone is not known' });
  const reserved = Math.max(0, capacity - allocatable);
  const text = `${amount(name, available)} of ${amount(name, allocatable)}${unit(name)} free`;
  const title = [text, reserved ? `${amount(name, reserved)}${unit(name)} reserved` : null, ...parts.map((part) => `${part.title}: ${amount(name, part.value)}${unit(name)}`)].filter(Boolean).join('; ');
  const picture = element('div', { role: 'img', 'aria-label': `${label(name)}: ${title}` });
  if (isBytes(name) || allocatable > MAX_CELLS) {
    picture.className = 'bar';
    for (const part of parts) {
      const piece = element('span', { title: `${part.title}: ${amount(name, part.value)}${unit(name)}` });
      piece.style.flexGrow = part.value;
      piece.style.background = part.colour;
      picture.append(piece);
    }
    const rest = element('span', { class: 'free' });
    rest.style.flexGrow = Math.max(0, allocatable - used);
    picture.append(rest);
  } else {
    picture.className = 'cells';
    for (const part of parts) {
      for (let at = 0; at < part.value; at += 1) {
        const cell = element('i', { title: part.title });
        cell.style.background = part.colour;
        picture.append(cell);
      }
    }
    for (let at = used; at < allocatable; at += 1) picture.append(element('i', { title: 'free' }));
  }
  return element('div', { class: 'resource' }, element('span', { class: 'name', title: name }, label(name)), picture, element('span', { class: 'amount' }, text));
}

function distances(zones) {
  if (zones.length < 2 || !zones.some((zone) => zone.distances.length > 0)) return null;
  const of = (zone, other) => zone.distances.find(([id]) => id === other.id)?.[1] ?? '';
  return table('Distances', ['zone', ...zones.map((zone) => String(zone.id))],
    zones.map((zone) => [String(zone.id), ...zones.map((other) => String(of(zone, other)))]));
}

function holders(all) {
  if (all.length === 0) return element('p', {}, 'No container has exclusive CPUs, memory or devices.');
  return table('Containers', [element('span', { class: 'hidden' }, 'colour'), 'pod', 'container', 'zones', 'has'], all.map((holder, index) => {
    const chip = element('i', { class: 'chip', 'aria-hidden': 'true' });
    chip.style.background = hue(index);
    return [chip, link(`${holder.namespace}/${holder.pod}`, fragment({ pod: `${holder.namespace}/${holder.pod}` })),
      holder.container, zonesText(holder.zones), has(holder)];
  }));
}

function has({ cpus, amounts }) {
  const parts = cpus > 0 ? [`${count(cpus)} cpu`] : [];
  for (const name of inOrder(Object.keys(amounts))) parts.push(`${amount(name, amounts[name])}${unit(name)} ${label(name)}`);
  return parts.join(', ');
}

/** What was used of a resource on a node, from its changes. */
function spark(tile, fleet, name) {
  const at = tile.resources.indexOf(name);
  if (at < 0) return null;
  const sum = (key) => tile.zones.reduce((total, zone) => total + zone[key][at], 0);
  const [of, free] = [sum('of'), sum('free')];
  const [width, height, minutes] = [320, 48, 10];
  const now = Date.now();
  const x = (time) => Math.max(0, width * (1 - (now - time) / (minutes * 60000)));
  const y = (used) => height - 2 - (of > 0 ? used / of : 0) * (height - 4);
  let used = of - free;
  let path = `M${width},${y(used)}`;
  let oldest = now;
  for (const event of fleet.history) {
    if (event.node !== tile.name) continue;
    if (now - event.at > minutes * 60000) break;
    const change = event.changes.filter((one) => one.resource === name).reduce((total, one) => total + one.from - one.to, 0);
    if (change === 0) continue;
    path += `H${x(event.at).toFixed(1)}`;
    used -= change;
    path += `V${y(used).toFixed(1)}`;
    oldest = event.at;
  }
  path += 'H0';
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.setAttribute('class', 'spark');
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', `${label(name)} in use in the last ${minutes} minutes: ${percent(of - free, of)} % now`);
  const line = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  line.setAttribute('d', path);
  svg.append(line);
  return element('figure', {}, svg, element('figcaption', {}, `${label(name)} in use, last ${minutes} minutes`, oldest === now ? ': no change since this page was served' : ''));
}

/** A pod: where each container is, aligned or not, and why. */
export function podView(pod) {
  const name = `${pod.namespace}/${pod.name}`;
  const head = [
    element('h2', { tabindex: '-1' }, name),
    facts([['phase', pod.phase], ['node', pod.node ? link(pod.node, fragment({ node: pod.node })) : 'none yet'], ['message', pod.message]]),
  ];
  if (pod.fit) return [...head, ...fitParts(pod.fit)];
  const { placement } = pod;
  if (!placement) return [...head, element('p', {}, 'Its node has no object: where its containers are is not known.')];
  if (placement.why) head.push(element('p', {}, `Nothing exclusive: ${placement.why}.`));
  const verdict = { true: 'aligned', false: 'not aligned', null: 'not known' };
  return [
    ...head,
    placement.containers.map((container) =>
      element('section', { class: 'zone', 'aria-label': container.name },
        element('h3', {}, container.name),
        element('p', { class: `verdict v-${container.aligned}` }, `${verdict[container.aligned]}: ${container.why}.`),
        facts([['zones', zonesText(container.zones)], ['has', has(container)]]))),
  ].flat();
}

function reasonTable(reasons) {
  if (reasons.length === 0) return null;
  return table('Why not on the others', ['nodes', 'reason'], reasons.slice(0, MAX_ROWS).map(([reason, nodes]) => [count(nodes), reason]));
}

function fitParts(answer) {
  const aligned = answer.fits.filter((one) => one.aligned);
  const where = (one) => one.zones.map((zones) => zonesText(zones)).join('; ');
  const rows = [...aligned, ...answer.fits.filter((one) => !one.aligned)];
  return [
    element('p', { class: aligned.length > 0 ? 'verdict v-true' : 'verdict v-false' },
      `Fits on one zone on ${count(aligned.length)} of ${plural(answer.nodes, 'node')}`,
      answer.fits.length > aligned.length ? `, spread over zones on ${count(answer.fits.length - aligned.length)} more` : '', '.'),
    answer.notConsidered.length > 0 ? element('p', { class: 'note' }, `Not considered: ${answer.notConsidered.join(', ')}.`) : null,
    rows.length > 0 ? table('Where it fits', ['node', 'where'], rows.slice(0, MAX_ROWS).map((one) =>
      [link(one.node, fragment({ node: one.node })), where(one) + (one.guess ? ' (perhaps)' : '')])) : null,
    reasonTable(answer.reasons),
  ];
}

/** Where the pod of a search fits. */
export const fitView = (answer, pod) => [element('h2', { tabindex: '-1' }, `Room for ${pod.replaceAll(',', ', ')}`), ...fitParts(answer)];

/** The pods that wait. */
export function pendingView({ pods }) {
  const head = element('h2', { tabindex: '-1' }, 'Pending pods');
  if (pods.length === 0) return [head, element('p', {}, 'No pod is Pending without a node.')];
  const name = (pod) => pod.name.replace(/^Pod /, '');
  const why = (pod) => [
    element('p', {}, pod.fits > 0 ? `fits on ${count(pod.fits)} of ${plural(pod.nodes, 'node')}` : 'fits on no node'),
    element('ul', {}, pod.reasons.slice(0, 4).map(([reason, nodes]) => element('li', {}, `${plural(nodes, 'node')}: ${reason}`))),
    pod.message ? element('p', { class: 'note' }, `The scheduler: ${pod.message}`) : null,
  ];
  return [head, table(`${plural(pods.length, 'pod')}`, ['pod', 'where it fits'], pods.slice(0, MAX_ROWS).map((pod) =>
    [link(name(pod), fragment({ pod: name(pod) })), element('div', {}, why(pod))]))];
}

function changeTable(events, withNode) {
  if (events.length === 0) return element('p', {}, 'No change since this page was served.');
  const text = (change) => {
    const used = change.from > change.to;
    return `zone ${change.zone}: ${amount(change.resource, Math.abs(change.from - change.to))}${unit(change.resource)} ${label(change.resource)} ${used ? 'taken' : 'released'}`;
  };
  const now = Date.now();
  const rows = events.map((event) => {
    const cells = [`${age(now - event.at)} ago`, event.changes.map(text).join('; ')];
    return withNode ? [cells[0], link(event.node, fragment({ node: event.node })), cells[1]] : cells;
  });
  return table('Changes', withNode ? ['when', 'node', 'what'] : ['when', 'what'], rows);
}

/** The last changes of all nodes. */
export const changesView = (fleet) => [element('h2', { tabindex: '-1' }, 'Changes'), changeTable(fleet.history.slice(0, MAX_ROWS), true)];

/** The address of what is seen with these changes; the page keeps the other parts. */
export function fragment(changes) {
  const state = new URLSearchParams(location.hash.slice(1));
  for (const key of ['node', 'pod', 'view']) state.delete(key);
  for (const [key, value] of Object.entries(changes)) state.set(key, value);
  return `#${state}`;
}
