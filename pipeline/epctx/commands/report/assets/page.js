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
    const rows = [...document.getElementById(tools.dataset.filters).tBodies[0].rows];
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const search = tools.querySelector("input");
    const buttons = [...tools.querySelectorAll("button")];
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
    tools.hidden = false;
    apply();
  }

  function graphs() {
    const eps = new Providers(JSON.parse(document.getElementById("eps").textContent));
    const open = (details) => {
      if (!details.open || details.dataset.ready) return;
      details.dataset.ready = "yes";
      views.push(new GraphView(details, eps));
    };
    for (const details of document.querySelectorAll("details.graph")) {
      details.addEventListener("toggle", () => open(details));
      open(details);
    }
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

  function printing() {
    let opened = [];
    addEventListener("beforeprint", () => {
      opened = [...document.querySelectorAll("details:not([open]):not(.graph):not(.nodes)")];
      for (const details of opened) details.open = true;
      for (const view of views) view.print();
    });
    addEventListener("afterprint", () => {
      for (const details of opened) details.open = false;
      recolour();
    });
  }

  theme();
  for (const tools of document.querySelectorAll("[data-filters]")) filters(tools);
  graphs();
  sections();
  printing();
  root.dataset.ready = "yes";
})();
