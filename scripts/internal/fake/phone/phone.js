// The phone: plays people through the fake's control API and shows its
// transcript. Whatever somebody wrote is put into the page as text, never as
// markup. README.md of the fake says what the API takes and gives.
'use strict';

const $ = (id) => document.getElementById(id);
const wireName = document.body.dataset.wire;

// wires say what differs between the two control APIs. A chat is called here as
// in the transcript.
const wires = {
  whatsapp: {
    account: (a) => ({ id: a.phoneNumberId, name: '+' + a.displayPhone, mention: '@' + a.displayPhone }),
    person: (p) => ({ id: p.id, chat: p.id, name: p.name || p.phone || p.id, under: p.phone ? '+' + p.phone : p.bsuid }),
    group: (g) => ({ id: g.id, chat: 'group:' + g.id, name: g.subject || g.id, members: g.people, topics: [] }),
    addPerson: (f) => ({ phone: f.get('id'), name: f.get('name') }),
    addGroup: (f) => ({ subject: f.get('name'), people: f.getAll('member') }),
    say(account, from, group, what) {
      const { file, thread, ...rest } = what;
      const say = { ...rest, number: account.id, from, group: group ? group.id : '' };
      if (file) say.file = { name: file.name, mimeType: file.mimeType, data: file.data, voice: file.voice };
      return say;
    },
    window: 24 * 3600e3,
    takesBack: true,
    voice: 'audio/ogg; codecs=opus',
    faults: [
      ['A message is lost on its way', { on: 'webhook', do: 'drop' }],
      ['The webhook is called twice', { on: 'webhook', do: 'double' }],
      ['The webhook is 10 seconds late', { on: 'webhook', do: 'delay', delay: '10s' }],
      ['The next webhook overtakes', { on: 'webhook', do: 'reorder' }],
      ['Sending: pair rate (131056)', { on: 'send', do: 'error', code: 131056 }],
      ['Sending: rate limit (130429)', { on: 'send', do: 'error', code: 130429 }],
      ['Sending: unavailable (131016)', { on: 'send', do: 'error', code: 131016 }],
      ['Sending: cut off, not taken', { on: 'send', do: 'cutBefore' }],
      ['Sending: taken, then cut off', { on: 'send', do: 'cutAfter' }],
      ['Sending: takes 10 seconds', { on: 'send', do: 'stall', delay: '10s' }],
      ['It does not arrive (131026)', { on: 'status', do: 'fail', code: 131026 }],
      ['Its ticks are never told', { on: 'status', do: 'drop' }],
      ['Its ticks are withheld', { on: 'status', do: 'withhold' }],
      ['Its ticks come backwards', { on: 'status', do: 'reorder' }],
      ['A file cannot be fetched', { on: 'media', do: 'error' }],
    ],
  },
  telegram: {
    account: (a) => ({ id: a.username, name: '@' + a.username, mention: '@' + a.username }),
    person: (p) => ({ id: p.id, chat: String(p.id), name: [p.firstName, p.lastName].filter(Boolean).join(' '), under: p.username ? '@' + p.username : String(p.id) }),
    group: (g) => ({ id: g.id, chat: String(g.id), name: g.title || String(g.id), members: null, topics: g.topics || [] }),
    addPerson: (f) => ({ firstName: f.get('name'), username: f.get('username') }),
    addGroup(f) {
      const topics = f.get('topics').split(',').map((t) => t.trim()).filter(Boolean).map((name, i) => ({ id: i + 2, name }));
      return { title: f.get('name'), type: 'supergroup', forum: topics.length > 0, topics };
    },
    say(account, from, group, what) {
      const { file, location, ...rest } = what;
      const say = { ...rest, bot: account.id, from };
      for (const id of ['replyTo', 'edit', 'thread']) if (say[id]) say[id] = Number(say[id]);
      if (group) say.chat = group.id;
      if (location) say.location = { latitude: location.latitude, longitude: location.longitude };
      if (file) say.files = [{ name: file.name, mimeType: file.mimeType, data: file.data, kind: file.voice ? 'voice' : '' }];
      return say;
    },
    window: 0,
    takesBack: false,
    voice: 'audio/ogg',
    faults: [
      ['A message is lost on its way', { on: 'webhook', do: 'drop' }],
      ['The webhook is called twice', { on: 'webhook', do: 'double' }],
      ['The webhook is 10 seconds late', { on: 'webhook', do: 'delay', delay: '10s' }],
      ['The webhook of another chat overtakes', { on: 'webhook', do: 'reorder' }],
      ['Sending: flood control (429)', { on: 'send', do: 'error', code: 429, retryAfter: 3 }],
      ['Sending: unavailable (502)', { on: 'send', do: 'error', code: 502 }],
      ['Sending: cut off, not taken', { on: 'send', do: 'cutBefore' }],
      ['Sending: taken, then cut off', { on: 'send', do: 'cutAfter' }],
      ['Sending: takes 10 seconds', { on: 'send', do: 'stall', delay: '10s' }],
      ['A file cannot be fetched', { on: 'media', do: 'error', code: 500 }],
    ],
  },
};
const wire = wires[wireName];

let accounts = [], people = [], groups = [];
let account = null;   // who is written to
let open = '';        // the chat that is shown
let quoted = null;    // the line that the next message answers
let edited = null;    // the line that the next message replaces
let source = null;    // the stream
let ahead = 0;        // of the fake's clock, in milliseconds
let typing = false;
let down = true;      // the newest message is on the screen, and stays there
const heads = new Map(); // chat -> its newest line
const seen = new Map();  // chat -> changed of the newest line that was on the screen
const shown = new Map(); // id -> {line, element}, of the open chat
const mostShown = 400, mostText = 4000;

// make returns an element with text in it, and whatever else it has.
function make(tag, className, text, more) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  Object.assign(e, more);
  return e;
}

async function call(method, path, body) {
  const answer = await fetch('/_fake/' + path, { method, body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await answer.text();
  let value = null;
  try { value = text ? JSON.parse(text) : null; } catch { /* no JSON: the status says it */ }
  if (!answer.ok) throw new Error(value && value.error ? value.error : 'the fake answered ' + answer.status);
  return value;
}

// trying does something and says what went wrong, if anything did.
async function trying(something) {
  $('problem').textContent = '';
  try {
    await something();
    return true;
  } catch (problem) {
    $('problem').textContent = 'Not done: ' + problem.message;
    return false;
  }
}

const groupOf = (chat) => groups.find((g) => g.chat === chat);
const personOf = (id) => people.find((p) => String(p.id) === String(id));
const nameOf = (chat) => (groupOf(chat) || personOf(chat) || { name: chat }).name;
const clock = () => new Date(Date.now() + ahead);

async function load() {
  [accounts, people, groups] = await Promise.all([
    call('GET', 'accounts').then((all) => all.map(wire.account)),
    call('GET', 'people').then((all) => all.map(wire.person)),
    call('GET', 'groups').then((all) => all.map(wire.group)),
  ]);
  const wanted = account ? account.id : new URLSearchParams(location.search).get('account');
  account = accounts.find((a) => a.id === wanted) || accounts[0];
  $('account').replaceChildren(...accounts.map((a) => make('option', '', a.name, { value: a.id, selected: a === account })));
}

// --- the list of chats

function showList() {
  const all = [...groups, ...people];
  const at = (c) => (heads.has(c.chat) ? heads.get(c.chat).seq : 0);
  all.sort((a, b) => at(b) - at(a));
  const focused = document.activeElement && document.activeElement.dataset.chat;
  $('list').replaceChildren(...all.map((c) => {
    const head = heads.get(c.chat), item = make('li'), link = make('a', '', undefined, { href: '#' + encodeURIComponent(c.chat) });
    link.dataset.chat = c.chat;
    if (c.chat === open) link.setAttribute('aria-current', 'true');
    const face = make('span', 'face', [...c.name][0] || '?');
    face.setAttribute('aria-hidden', 'true');
    link.append(face, make('span', 'name', c.name.slice(0, 200)));
    if (head && !head.from && c.chat !== open && head.changed > (seen.get(c.chat) || 0)) link.append(make('span', 'new', 'new'));
    link.append(make('span', 'last', head ? (head.from && c.members !== undefined ? head.name + ': ' : '') + brief(head) : c.under || ''));
    item.append(link);
    return item;
  }));
  if (focused) for (const link of $('list').querySelectorAll('a')) if (link.dataset.chat === focused) link.focus();
  $('nobody').hidden = all.length > 0;
}

function brief(line) {
  if (line.gone) return 'taken back';
  if (line.text) return line.text.slice(0, 120);
  return line.file ? line.file.name || line.kind : line.kind;
}

// --- one chat

function openChat() {
  let chat = '';
  try { chat = decodeURIComponent(location.hash.slice(1)); } catch { /* nobody's name */ }
  if (heads.has(open)) seen.set(open, heads.get(open).changed);
  open = groupOf(chat) || personOf(chat) ? chat : '';
  document.body.classList.toggle('open', open !== '');
  shown.clear();
  $('lines').replaceChildren();
  down = true;
  $('lines').setAttribute('aria-live', 'off'); // what was there already is not read out
  $('earlier').hidden = true;
  quote(null);
  $('say').hidden = open === '';
  $('problem').textContent = '';
  const group = groupOf(open);
  $('title').textContent = open === '' ? 'No chat is open' : nameOf(open).slice(0, 200);
  $('who').hidden = !group;
  if (group) {
    const before = $('as').value, members = group.members ? people.filter((p) => group.members.includes(p.id)) : people;
    $('as').replaceChildren(...members.map((p) => make('option', '', p.name.slice(0, 200), { value: p.id, selected: String(p.id) === before })));
    $('thread').replaceChildren(make('option', '', 'General', { value: '' }), ...group.topics.map((t) => make('option', '', t.name, { value: t.id })));
  }
  $('topics').hidden = !group || group.topics.length === 0;
  showUnder();
  showList();
  listen();
  if (open !== '') $('text').focus();
}

function showUnder() {
  const group = groupOf(open), one = personOf(open);
  let text = 'Choose one on the left, or add a person.';
  if (group) text = group.members ? group.members.map((id) => nameOf(id)).join(', ').slice(0, 300) : 'Group';
  if (one) text = one.under + ' writes to ' + account.name;
  if (open !== '' && wire.window) {
    const last = [...shown.values()].map((s) => s.line).filter((l) => l.from).at(-1);
    const left = last ? Date.parse(last.at) + wire.window - clock() : 0;
    if (left > 0) text += ' · may be answered for ' + (left > 3600e3 ? Math.floor(left / 3600e3) + ' h' : Math.ceil(left / 60e3) + ' min');
    else if (last) text += ' · the 24 hours are over: only templates reach them';
  }
  $('under').textContent = text;
}

function listen() {
  if (source) source.close();
  const query = new URLSearchParams({ account: account.id, chat: open });
  source = new EventSource('changes?' + query);
  source.onmessage = (event) => news(JSON.parse(event.data));
}

async function news(n) {
  ahead = Date.parse(n.now) - Date.now();
  typing = n.typing;
  const before = down;
  if (n.cut) $('earlier').hidden = false;
  for (const line of n.lines) put(line);
  for (const line of n.heads) heads.set(line.chat, line);
  if (n.lines.length > 0 && before) toNewest();
  if ($('lines').getAttribute('aria-live') === 'off') requestAnimationFrame(() => $('lines').setAttribute('aria-live', 'polite'));
  $('typing').textContent = typing ? account.name + ' is typing…' : '';
  if (typing && before) toNewest();
  if (n.heads.some((h) => !groupOf(h.chat) && !personOf(h.chat))) await trying(load);
  showList();
  showUnder();
  $('now').textContent = clock().toLocaleString();
  if (n.heads.length > 0) faultsSoon();
}

function toNewest() {
  $('scroll').scrollTop = $('scroll').scrollHeight;
}

// put shows a line, in place of what was shown of it before.
function put(line) {
  const known = shown.get(line.id), element = bubble(line);
  if (known) {
    const busy = known.element.contains(document.activeElement) ? document.activeElement.textContent : '';
    known.element.replaceWith(element);
    if (busy) for (const b of element.querySelectorAll('button')) if (b.textContent === busy) b.focus();
    shown.set(line.id, { line, element });
    return;
  }
  const last = [...shown.values()].at(-1);
  const day = new Date(line.at).toLocaleDateString();
  if (!last || new Date(last.line.at).toLocaleDateString() !== day) $('lines').append(make('li', 'day', day));
  shown.set(line.id, { line, element });
  $('lines').append(element);
  while (shown.size > mostShown && $('earlier').dataset.all !== open) {
    const [id, oldest] = shown.entries().next().value;
    oldest.element.remove();
    shown.delete(id);
    $('earlier').hidden = false;
  }
}

function bubble(line) {
  const item = make('li', line.from ? 'mine' : '');
  const group = groupOf(line.chat);
  if (line.from === '' || !line.from) item.append(make('p', group ? 'who' : 'who unseen', account.name));
  else item.append(make('p', group ? 'who' : 'who unseen', line.name || line.from));
  if (line.replyTo && shown.has(line.replyTo)) item.append(make('p', 'quote', brief(shown.get(line.replyTo).line)));
  if (line.gone) item.append(make('p', 'said gone', 'This message was taken back.'));
  else {
    if (line.file) item.append(fileOf(line));
    item.append(...textOf(line));
    if (line.choices) item.append(choicesOf(line));
  }
  const meta = make('div', 'meta');
  const topic = group && line.thread ? group.topics.find((t) => String(t.id) === line.thread) : null;
  if (topic) meta.append(make('span', 'name', topic.name));
  if (line.marks) meta.append(make('span', '', line.marks));
  if (line.edited) meta.append(make('span', '', 'edited'));
  meta.append(make('time', '', new Date(line.at).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' }), { dateTime: line.at }));
  if (line.ticks) meta.append(make('span', line.ticks === 'failed' ? 'failed' : '', { sent: '✓', delivered: '✓✓', read: '✓✓', failed: '✗' }[line.ticks] + ' ' + line.ticks));
  if (line.why) meta.append(make('span', 'why', line.why));
  if (!line.gone && line.kind !== 'press') meta.append(actionsOf(line));
  item.append(meta);
  return item;
}

function textOf(line) {
  let text = line.text || '';
  if (line.kind === 'press') text = 'Taps: ' + text;
  if (line.kind === 'location') text = 'A place: ' + text;
  if (line.kind === 'reaction') text = 'Reacts: ' + text;
  if (!text && !line.file) text = '(' + line.kind + ')';
  if (!text) return [];
  const said = make('p', 'said', text.slice(0, mostText), { dir: 'auto' });
  if (text.length <= mostText) return [said];
  const all = make('button', '', 'Show all ' + text.length.toLocaleString() + ' characters', { type: 'button' });
  all.onclick = () => { said.textContent = text; all.remove(); };
  return [said, all];
}

function fileOf(line) {
  const f = line.file, url = '/_fake/files/' + encodeURIComponent(f.id || ''), name = f.name || line.kind;
  const figure = make('p', 'said');
  if (/^image\/(png|jpeg|webp|gif)/.test(f.mimeType || '')) {
    figure.append(make('img', 'sent', undefined, { src: url, alt: name, loading: 'lazy' }));
    return figure;
  }
  const what = { audio: 'Voice note or sound', voice: 'Voice note', video: 'Video' }[line.kind] || 'File';
  if (!f.id) figure.append(what + ': ' + name);
  else figure.append(make('a', '', what + ': ' + name + ' (' + f.bytes.toLocaleString() + ' bytes)', { href: url, target: '_blank', rel: 'noopener', download: name }));
  return figure;
}

function choicesOf(line) {
  const all = make('div', 'choices ' + line.kind);
  all.setAttribute('role', 'group');
  all.setAttribute('aria-label', 'Answers');
  for (const c of line.choices) {
    const tap = make('button', '', c.title, { type: 'button' });
    if (c.description) tap.append(make('small', '', c.description));
    tap.onclick = () => say({ press: c.id, replyTo: line.id });
    all.append(tap);
  }
  return all;
}

function actionsOf(line) {
  const more = make('details', 'more'), summary = make('summary', '', '⋯'), all = make('div');
  summary.setAttribute('aria-label', 'More for this message');
  const action = (title, does) => {
    const b = make('button', '', title, { type: 'button' });
    b.onclick = () => { more.open = false; does(); };
    all.append(b);
  };
  action('Reply', () => quote(line));
  action(line.marks ? 'Take 👍 away' : '👍', () => say({ react: line.marks ? '-' : '👍', replyTo: line.id }));
  if (line.from && line.kind === 'text') action('Edit', () => quote(line, true));
  if (line.from && wire.takesBack) action('Take back', () => say({ revoke: line.id }));
  more.append(summary, all);
  return more;
}

// quote lets the next message answer a line, or replace it.
function quote(line, replace) {
  quoted = replace ? null : line;
  edited = replace ? line : null;
  $('quoting').hidden = !line;
  if (!line) return;
  $('quoting').firstElementChild.textContent = (replace ? 'Edit: ' : 'Answer to: ') + brief(line);
  if (replace) $('text').value = line.text;
  $('text').focus();
}

function say(what) {
  const group = groupOf(open), one = personOf(open);
  const from = group ? (personOf($('as').value) || {}).id : one.id;
  if (group && group.topics.length > 0 && $('thread').value && !what.replyTo) what.thread = $('thread').value;
  return trying(() => {
    if (from === undefined) throw new Error('nobody is in this group');
    return call('POST', 'say', wire.say(account, from, group, what));
  });
}

async function send() {
  const text = $('text').value;
  if (text.trim() === '') return;
  const what = edited ? { edit: edited.id, text } : { text };
  if (quoted) what.replyTo = quoted.id;
  if (!await say(what)) return;
  $('text').value = '';
  grow();
  quote(null);
}

function grow() {
  $('text').style.height = 'auto';
  $('text').style.height = $('text').scrollHeight + 2 + 'px';
}

// --- files

async function base64(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  let text = '';
  for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(text);
}

async function hand(blob, name, mimeType, voice) {
  const what = { file: { name, mimeType, data: await base64(blob), voice: Boolean(voice) } };
  const caption = $('text').value.trim();
  if (caption && !voice) what.text = caption;
  if (await say(what) && what.text) $('text').value = '';
}

const made = {
  text: () => hand(new Blob(['name,apples\nAda,3\nBen,5\n']), 'apples.txt', 'text/plain'),
  voice: () => hand(new Blob(['OggS', new Uint8Array(60)]), 'voice.ogg', wire.voice, true), // stands for a sound
  location: () => say({ location: { latitude: 48.8584, longitude: 2.2945, name: 'A tower', address: 'Paris' } }),
  async image() {
    const canvas = make('canvas', '', undefined, { width: 240, height: 160 }), pen = canvas.getContext('2d');
    pen.fillStyle = '#8ec5e8';
    pen.fillRect(0, 0, 240, 160);
    pen.fillStyle = '#f2c14e';
    pen.beginPath();
    pen.arc(180, 50, 26, 0, 7);
    pen.fill();
    pen.fillStyle = '#4f8a5b';
    pen.fillRect(0, 110, 240, 50);
    await hand(await new Promise((done) => canvas.toBlob(done, 'image/png')), 'field.png', 'image/png');
  },
};

// --- clock and faults

const inWords = (f) => (wire.faults.find(([, k]) => k.on === f.on && k.do === f.do && (k.code || 0) === (f.code || 0)) || [f.on + ': ' + f.do])[0];

async function showFaults() {
  const all = await call('GET', 'faults');
  $('faults').replaceChildren(...all.map((f) => make('li', '', inWords(f) + ', ' + (f.times < 0 ? 'until cleared' : f.times === 1 ? 'once' : f.times + ' times') + (f.chat ? ', with ' + nameOf(f.chat) : ''))));
  $('waiting').textContent = all.length > 0 ? ' (' + all.length + ')' : '';
}

let soon = 0;
function faultsSoon() {
  clearTimeout(soon);
  soon = setTimeout(() => showFaults().catch(() => {}), 300); // the next look tells it, if the fake is away
}

async function openTools() {
  $('limits').checked = (await call('GET', 'limits')).on;
  $('now').textContent = clock().toLocaleString();
  await showFaults();
}

// --- what is tapped

function wireUp() {
  $('account').onchange = () => trying(async () => {
    account = accounts.find((a) => a.id === $('account').value);
    heads.clear();
    openChat();
  });
  addEventListener('hashchange', openChat);
  $('say').onsubmit = (event) => { event.preventDefault(); send(); };
  $('scroll').onscroll = () => { down = $('scroll').scrollHeight - $('scroll').scrollTop - $('scroll').clientHeight < 80; };
  $('text').oninput = grow;
  $('text').onkeydown = (event) => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  };
  $('quoting').lastElementChild.onclick = () => quote(null);
  $('mention').onclick = () => { $('text').value += account.mention + ' '; $('text').focus(); };
  $('earlier').onclick = () => trying(async () => {
    const page = await call('GET', 'chats/' + encodeURIComponent(groupOf(open) ? groupOf(open).id : open) + '?' + new URLSearchParams({ account: account.id }));
    $('earlier').dataset.all = open;
    $('earlier').hidden = true;
    shown.clear();
    $('lines').setAttribute('aria-live', 'off');
    $('lines').replaceChildren();
    page.lines.forEach(put);
  });
  for (const b of document.querySelectorAll('[data-sends]')) b.onclick = () => { $('attach').open = false; trying(made[b.dataset.sends]); };
  $('file').onchange = () => trying(async () => {
    const f = $('file').files[0];
    $('attach').open = false;
    if (f) await hand(f, f.name, f.type || 'application/octet-stream');
    $('file').value = '';
  });
  for (const b of document.querySelectorAll('[data-opens]')) b.onclick = () => trying(async () => {
    if (b.dataset.opens === 'tools') await openTools();
    if (b.dataset.opens === 'group' && $('members')) {
      $('members').replaceChildren($('members').firstElementChild, ...people.map((p) => {
        const tick = make('label', 'tick'), box = make('input', '', undefined, { type: 'checkbox', name: 'member', value: p.id, checked: true });
        tick.append(box, ' ', make('span', 'name', p.name.slice(0, 200)));
        return tick;
      }));
    }
    $(b.dataset.opens).showModal();
  });
  for (const b of document.querySelectorAll('[data-closes]')) b.onclick = () => b.closest('dialog').close();
  for (const what of ['person', 'group']) {
    const form = $(what).querySelector('form');
    form.onsubmit = (event) => {
      event.preventDefault();
      const fields = new FormData(form);
      trying(async () => {
        const added = what === 'person' ? wire.person(await call('POST', 'people', wire.addPerson(fields))) : wire.group(await call('POST', 'groups', wire.addGroup(fields)));
        await load();
        form.reset();
        location.hash = encodeURIComponent(added.chat);
        showList();
      });
      $(what).close();
    };
  }
  for (const b of document.querySelectorAll('[data-jump]')) b.onclick = () => trying(() => call('POST', 'clock', { jump: b.dataset.jump }));
  const fault = $('fault');
  fault.what.replaceChildren(...wire.faults.map(([title], i) => make('option', '', title, { value: i })));
  fault.onsubmit = (event) => {
    event.preventDefault();
    const f = { ...wire.faults[fault.what.value][1], times: Number(fault.times.value) };
    if (fault.here.checked && open) f.chat = open;
    trying(async () => { await call('POST', 'faults', f); await showFaults(); });
  };
  $('clear').onclick = () => trying(async () => { await call('DELETE', 'faults'); await showFaults(); });
  if ($('release')) $('release').onclick = () => trying(() => call('POST', 'release', {}));
  $('limits').onchange = () => trying(() => call('POST', 'limits', { on: $('limits').checked }));
}

wireUp();
trying(async () => {
  await load();
  openChat();
  $('text').value = new URLSearchParams(location.search).get('text') || ''; // a link may say what to write
  await showFaults();
});
