// The tour's page: shows what the stream says of each step, as text.
'use strict';

const make = (tag, text, more) => Object.assign(document.createElement(tag), { textContent: text }, more);
let before = null; // how many were done at the last look

function show(steps) {
  for (const step of steps) {
    const item = document.getElementById(step.id);
    item.classList.toggle('done', step.done);
    item.querySelector('.tick').textContent = step.done ? '✓ done' : '';
    item.querySelector('.proof').replaceChildren(...(step.proof || []).map((text) => make('li', text)));
    const links = step.links || [], shown = item.querySelector('.links');
    if (links.map((l) => l.url).join('\n') !== [...shown.children].map((a) => a.getAttribute('href')).join('\n')) {
      shown.replaceChildren(...links.map((l) => make('a', l.title, { href: l.url, target: '_blank', rel: 'noopener' })));
    }
  }
  const next = steps.find((s) => !s.done), done = steps.filter((s) => s.done).length;
  for (const step of steps) document.getElementById(step.id).classList.toggle('next', step === next);
  document.getElementById('state').textContent = next ? done + ' of ' + steps.length + ' done' : 'All done';
  document.getElementById('end').hidden = Boolean(next);
  if (!next && before !== null && before < steps.length) document.getElementById('end').focus();
  before = done;
}

new EventSource('progress').onmessage = (event) => show(JSON.parse(event.data));
