// What the theme leaves out for people who read without a mouse or a screen.
const labelled = { ".sidebar-drawer": "Pages", ".toc-drawer": "On this page" };

function reachable() {
  for (const each of document.querySelectorAll("pre, .table-wrapper")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
    else each.removeAttribute("tabindex");
  }
}

document.addEventListener("DOMContentLoaded", () => {
  for (const [found, label] of Object.entries(labelled)) {
    document.querySelector(found)?.setAttribute("aria-label", label);
  }
  for (const caption of document.querySelectorAll(".caption[role=heading]")) {
    caption.setAttribute("aria-level", "2");
  }
  for (const head of document.querySelectorAll("th")) {
    if (!head.textContent.trim()) head.replaceWith(document.createElement("td"));
  }
  if (!document.querySelector("h1")) {
    const heading = Object.assign(document.createElement("h1"), { textContent: document.title });
    document.querySelector("article")?.prepend(heading);
  }
  reachable();
});
window.addEventListener("load", reachable);
window.addEventListener("resize", reachable);
