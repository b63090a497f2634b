// What pages do beside links and forms. Nothing here is needed to use them.
(() => {
  "use strict";
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const typing = (e) => e.target.closest("input, textarea, select, [contenteditable]");

  // A choice that applies at once needs no button.
  all("[data-submit]").forEach((s) => s.addEventListener("change", () => s.form.requestSubmit()));
  all("[data-scriptless]").forEach((b) => { b.hidden = true; });

  const local = (from) => all("time", from).forEach((t) => { t.title = new Date(t.dateTime).toLocaleString(); });
  const toEnd = (from) => all("[data-end]", from).forEach((p) => { p.scrollTop = p.scrollHeight; });
  local(document); toEnd(document);

  // Parts that are renewed keep what is open in them, and what has the focus.
  let open = new Set(), focused = "";
  document.addEventListener("htmx:beforeSwap", (e) => {
    open = new Set(all("details[open][id]", e.detail.target).map((d) => d.id));
    focused = e.detail.target.contains(document.activeElement) ? document.activeElement.getAttribute("href") || document.activeElement.id : "";
  });
  document.addEventListener("htmx:afterSettle", (e) => {
    all("details[id]", e.detail.elt).forEach((d) => { if (open.has(d.id)) d.open = true; });
    if (focused) {
      const again = all("a[href], [id]", e.detail.elt).find((x) => x.getAttribute("href") === focused || x.id === focused);
      if (again) again.focus({ preventScroll: true });
    }
    local(e.detail.elt); toEnd(e.detail.elt);
  });
  // Nobody looks at a page behind others: it is not renewed by the clock.
  document.addEventListener("htmx:beforeRequest", (e) => { if (document.hidden && !e.detail.requestConfig.triggeringEvent) e.preventDefault(); });

  // A browser has six connections to one address, for all tabs. A page that nobody looks
  // at gives its own back; looked at again, it asks for what it has missed.
  class Stream extends EventTarget {
    constructor(address) {
      super();
      this.address = address;
      document.addEventListener("visibilitychange", this);
      this.handleEvent();
    }
    get readyState() { return this.source ? this.source.readyState : this.over ? EventSource.CLOSED : EventSource.CONNECTING; }
    handleEvent(e) {
      if (document.hidden) { this.source?.close(); this.source = null; }
      if (document.hidden || this.source) return;
      const source = this.source = new EventSource(this.address);
      source.onopen = (o) => this.onopen?.(o);
      source.onerror = (o) => { if (source.readyState === EventSource.CLOSED) this.close(); this.onerror?.(o); };
      for (const name of ["changed", "end"]) source.addEventListener(name, () => this.dispatchEvent(new Event(name)));
      if (e) this.dispatchEvent(new Event("changed"));
    }
    close() {
      document.removeEventListener("visibilitychange", this);
      this.source?.close();
      this.source = null;
      this.over = true;
    }
  }
  htmx.createEventSource = (address) => new Stream(address);

  // Keys: ? the list, / to the filter, g and a letter to a page, j and k by rows.
  let gone = 0;
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || typing(e)) return;
    const keys = document.getElementById("keys");
    if (e.key === "?") { keys.open ? keys.close() : keys.showModal(); e.preventDefault(); return; }
    if (e.key === "/") {
      const field = document.querySelector("[data-search]");
      if (field) { field.focus(); e.preventDefault(); }
      return;
    }
    if (Date.now() - gone < 1500) {
      gone = 0;
      const link = all("a[data-key]").find((a) => a.dataset.key === e.key);
      if (link) { location.assign(link.href); e.preventDefault(); }
      return;
    }
    if (e.key === "g") { gone = Date.now(); return; }
    if (e.key === "j" || e.key === "k") {
      const rows = all("[data-row]"), now = rows.findIndex((r) => r.contains(document.activeElement));
      const next = rows[Math.min(rows.length - 1, Math.max(0, now + (e.key === "j" ? 1 : -1)))];
      const link = next && next.querySelector("a");
      if (link) { link.focus(); e.preventDefault(); }
    }
  });
})();
