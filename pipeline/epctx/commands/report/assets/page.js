/** The page: theme, filters of tables, where the reader is, graphs when they are opened, printing. */
(() => {
  const root = document.documentElement;
  const views = [];

  function recolour() {
    for (const view of views) view.recolour();
  }

  function theme() {
    const group = document.querySelector(".theme");
    const choose = (choice) => {
      if (choice === "auto") delete root.dataset.theme;
      else root.dataset.theme = choice;
      for (const button of group.querySelectorAll("button")) {
        button.setAttribute("aria-pressed", String(button.dataset.themeChoice === choice));
      }
      recolour();
    };
    for (const button of group.querySelectorAll("button")) {
      button.addEventListener("click", () => {
        choose(button.dataset.themeChoice);
        remember(button.dataset.themeChoice);
      });
    }
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
    group.hidden = false;
    const known = remembered();
    if (["light", "dark"].includes(known)) choose(known);
  }

  // A page from a file may have no storage: the choice then holds until it is closed.
  function remember(choice) {
    try {
      localStorage.setItem("epctx-theme", choice);
    } catch {
      return;
    }
  }

  function remembered() {
    try {
      return localStorage.getItem("epctx-theme");
    } catch {
      return null;
    }
  }

  function filters(tools) {
    const filtered = document.getElementById(tools.dataset.filters);
    const rows = [...(filtered.tBodies?.[0].rows ?? filtered.children)];
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const search = tools.querySelector("input");
    const buttons = [...tools.querySelectorAll("[data-show]")];
    const count = tools.querySelector(".count");
    const apply = () => {
      const kind = buttons.find((button) => button.getAttribute("aria-pressed") === "true").dataset.show;
      const wanted = search.value.trim().toLowerCase();
      let shown = 0;
      rows.forEach((row, place) => {
        row.hidden = Boolean((kind && row.dataset.kind !== kind) || !texts[place].includes(wanted));
        shown += row.hidden ? 0 : 1;
      });
      count.textContent = `${shown} of ${rows.length}`;
    };
    for (const button of buttons) {
      button.addEventListener("click", () => {
        for (const each of buttons) each.setAttribute("aria-pressed", String(each === button));
        apply();
      });
    }
    search.addEventListener("input", apply);
    for (const button of tools.querySelectorAll("[data-open]")) {
      button.addEventListener("click", () => {
        for (const row of rows) row.querySelector("details").open = Boolean(button.dataset.open);
      });
    }
    tools.hidden = false;
    apply();
  }

  /** Write its column's heading at each cell, for a page that is too narrow for rows. */
  function label(table) {
    const headings = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    for (const row of table.tBodies[0].rows) {
      for (const cell of row.cells) if (cell.colSpan === 1) cell.dataset.label = headings[cell.cellIndex];
    }
  }

  /** Make the graphs that are open; return what makes those that are open later. */
  function graphs() {
    const eps = new Providers(JSON.parse(document.getElementById("eps").textContent));
    const make = (body) => {
      seen.unobserve(body);
      waiting.delete(body);
      views.push(new GraphView(body.closest("details"), eps));
    };
    const waiting = new Set(document.querySelectorAll(".graph-body"));
    // A graph is made when its frame comes near what is on the screen, be it by opening what it is in.
    const seen = new IntersectionObserver(
      (entries) => { for (const entry of entries) if (entry.isIntersecting) make(entry.target); },
      { rootMargin: "100%" },
    );
    const makeOpen = () => { for (const body of waiting) if (body.checkVisibility()) make(body); };
    makeOpen();
    for (const body of waiting) seen.observe(body);
    return makeOpen;
  }

  /** Open what a reference of the page points to, and all that it is in. */
  function reveal() {
    const target = document.getElementById(location.hash.slice(1));
    if (!target) return;
    const inside = target.querySelector(":scope > details");
    for (let each = inside ?? target; each; each = each.parentElement) {
      each.hidden = false;
      if (each.tagName === "DETAILS") each.open = true;
    }
    target.scrollIntoView();
  }

  function references() {
    addEventListener("hashchange", reveal);
    document.addEventListener("click", (event) => {
      const link = event.target.closest("a[href^='#']");
      if (link && link.hash === location.hash) reveal();
    });
    reveal();
  }

  function sections() {
    const links = new Map([...document.querySelectorAll(".sections a")].map((link) => [link.hash.slice(1), link]));
    const mark = () => {
      let current = null;
      for (const [id, link] of links) {
        link.removeAttribute("aria-current");
        if (document.getElementById(id).getBoundingClientRect().top < innerHeight / 3) current = link;
      }
      (current ?? links.values().next().value)?.setAttribute("aria-current", "true");
    };
    addEventListener("scroll", mark, { passive: true });
    mark();
  }

  function printing(makeOpen) {
    let opened = [];
    addEventListener("beforeprint", () => {
      opened = [...document.querySelectorAll("details:not([open]):not(.graph):not(.nodes)")];
      for (const details of opened) details.open = true;
      makeOpen();
      for (const view of views) view.print();
    });
    addEventListener("afterprint", () => {
      for (const details of opened) details.open = false;
      recolour();
    });
  }

  theme();
  for (const tools of document.querySelectorAll("[data-filters]")) filters(tools);
  for (const table of document.querySelectorAll(".scroll table")) label(table);
  const makeOpen = graphs();
  sections();
  printing(makeOpen);
  references();
  root.dataset.ready = "yes";
})();
